/* SPDX-License-Identifier: Apache-2.0 */
/* Dynamic shared memory, `extern __shared__ unsigned char ndm_smem[]`: one array a stream's thread.
 * A library of its own: 227 KiB of thread-local storage beside initial-exec variables makes dlopen
 * fail. */
__thread unsigned char ndm_smem[227 * 1024] __attribute__((aligned(1024)));
