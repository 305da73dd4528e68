/* SPDX-License-Identifier: Apache-2.0 */
/* What cuBLAS and cuBLASLt share: types, and a checked product on a stream. */
#pragma once

#include "cuemu_host.h"

#include <cublas_v2.h>

bool cuemu_blas_type(cudaDataType type, cuemu_type *out); /* false: not a type of matrices here */
/* Checks sizes and that all is device memory, then puts it on the stream. */
cublasStatus_t cuemu_blas_product(const cuemu_gemm *gemm, cudaStream_t stream);
