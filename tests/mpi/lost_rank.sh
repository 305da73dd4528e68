#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A job that loses a rank ends within 10 s and not with success. With the launcher's clean-up off,
# the surviving ranks find out themselves and name the lost one.
mpiexec=$1
program=$2
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT

out=$(timeout -k 1 10 "$mpiexec" -n 3 "$program" 2>"$errors")
code=$?
if [ $code -eq 0 ] || [ $code -eq 124 ] || echo "$out" | grep -q unreachable; then
    echo "lost rank: exit code $code, output '$out'" && cat "$errors"
    exit 1
fi

# A shell around each rank keeps the launcher from ending the others when one is killed.
: >"$errors"
timeout -k 1 20 "$mpiexec" -disable-auto-cleanup -n 3 \
    sh -c 'trap "" USR1; "$0" "$1"; exit 3' "$program" "$errors" >/dev/null 2>&1
code=$?
for _ in 1 2 3 4 5 6 7 8 9; do
    [ "$(grep -c 'rank 1 (node .* is gone' "$errors")" -eq 2 ] && [ $code -ne 0 ] && exit 0
    sleep 1
done
echo "lost rank without clean-up: exit code $code, survivors said:" && cat "$errors"
exit 1
