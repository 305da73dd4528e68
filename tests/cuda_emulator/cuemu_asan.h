/* SPDX-License-Identifier: Apache-2.0 */
/* The address sanitizer's calls where this was built with it; allocations are then opened one by
 * one. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

void __asan_poison_memory_region(const volatile void *at, size_t bytes) __attribute__((weak));
void __asan_unpoison_memory_region(const volatile void *at, size_t bytes) __attribute__((weak));

static inline bool cuemu_asan(void)
{
    return __asan_poison_memory_region != NULL;
}
