/* SPDX-License-Identifier: Apache-2.0 */
/* Included before a .cu that g++ compiles as plain C++ (-x c++ -include cuemu.h). The real CUDA
 * headers come first, in host mode: types, bf16 and fp8 arithmetic. This file adds what device mode
 * would. */
#pragma once

/* device_launch_parameters.h declares threadIdx and its kin with this storage class: thread locals.
 * Macros would also rename the members of cudaLaunchConfig_t. */
#define __STORAGE__ extern const thread_local __attribute__((tls_model("initial-exec")))
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <device_launch_parameters.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "cuemu_launch.h"
#include "cuemu_threads.h"

#undef __shared__
#define __shared__ \
    thread_local /* at block scope also static: one a stream's thread, so one a block */
#undef __launch_bounds__
#define __launch_bounds__(...)
#define __syncthreads cuemu_syncthreads
/* glibc has declared these names, for itself */
#define __expf cuemu_expf
#define __exp2f cuemu_exp2f
#define __logf cuemu_logf
#define __log2f cuemu_log2f
#define __powf cuemu_powf
#define __sinf cuemu_sinf
#define __cosf cuemu_cosf
#define __sincosf cuemu_sincosf

/* ---- launches: the name and shape of CUDA's C++ call ---- */

#define cudaLaunchKernelEx cuemu_launch_ex

template <class... E> static void cuemu_thunk(void *kernel, void *args)
{
    std::apply(reinterpret_cast<void (*)(E...)>(kernel), *static_cast<std::tuple<E...> *>(args));
}

template <class... E, class... A>
static inline cudaError_t cuemu_launch_ex(const cudaLaunchConfig_t *config, void (*kernel)(E...),
                                          A &&...a)
{
    static_assert((std::is_trivially_copyable<E>::value && ...),
                  "kernel arguments are copied as bytes");
    std::tuple<E...> args(std::forward<A>(a)...);
    return cuemu_launch(config, reinterpret_cast<const void *>(kernel),
                        reinterpret_cast<const void *>(cuemu_thunk<E...>), &args, sizeof args);
}

template <class T>
static inline cudaError_t cudaFuncSetAttribute(T *kernel, enum cudaFuncAttribute attribute,
                                               int value)
{
    return ::cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), attribute, value);
}

/* ---- warps ---- */

template <class T> static inline T cuemu_from(unsigned mask, T value, int lane)
{
    static_assert(sizeof(T) <= CUEMU_LANE_BYTES, "a lane gives up to 32 bytes");
    T out;
    std::memcpy(&out, cuemu_exchange(mask, &value, sizeof value) + CUEMU_LANE_BYTES * (lane & 31),
                sizeof out);
    return out;
}

template <class T> static inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32)
{
    return cuemu_from(mask, value, (cuemu_lane() & -width) + (lane & (width - 1)));
}

template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32)
{
    int me = cuemu_lane(), lane = me ^ bits;
    return cuemu_from(mask, value, (lane & -width) > (me & -width) ? me : lane);
}

template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32)
{
    int me = cuemu_lane(), lane = me + (int)delta;
    return cuemu_from(mask, value, (me & (width - 1)) + (int)delta >= width ? me : lane);
}

template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32)
{
    int me = cuemu_lane(), lane = me - (int)delta;
    return cuemu_from(mask, value, (me & (width - 1)) < (int)delta ? me : lane);
}

static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    cuemu_exchange(mask, "", 0);
}

/* f(lane's value) over the lanes of the mask, in order */
template <class T, class F> static inline void cuemu_each_lane(unsigned mask, T value, F f)
{
    const char *all = cuemu_exchange(mask, &value, sizeof value);
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1) {
            T other;
            std::memcpy(&other, all + CUEMU_LANE_BYTES * lane, sizeof other);
            f(lane, other);
        }
}

static inline unsigned __ballot_sync(unsigned mask, int predicate)
{
    unsigned bits = 0;
    cuemu_each_lane(mask, predicate, [&](int lane, int p) { bits |= (p ? 1u : 0u) << lane; });
    return bits;
}

static inline int __any_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) != 0;
}

static inline int __all_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) == mask;
}

template <class T> static inline T __reduce_add_sync(unsigned mask, T value)
{
    T sum = 0;
    cuemu_each_lane(mask, value, [&](int, T v) { sum += v; });
    return sum;
}

template <class T> static inline T __reduce_max_sync(unsigned mask, T value)
{
    T most = value;
    cuemu_each_lane(mask, value, [&](int, T v) { most = v > most ? v : most; });
    return most;
}

template <class T> static inline T __reduce_min_sync(unsigned mask, T value)
{
    T least = value;
    cuemu_each_lane(mask, value, [&](int, T v) { least = v < least ? v : least; });
    return least;
}

/* ---- blocks ---- */

static inline int __syncthreads_count(int predicate)
{
    int voters;
    return cuemu_syncthreads_vote(predicate, &voters);
}

static inline int __syncthreads_or(int predicate)
{
    return __syncthreads_count(predicate) != 0;
}

static inline int __syncthreads_and(int predicate)
{
    int voters, yes = cuemu_syncthreads_vote(predicate, &voters);
    return yes == voters;
}

static inline void __threadfence(void)
{
}
static inline void __threadfence_block(void)
{
}

/* ---- numbers ---- */

template <class A, class B> static inline typename std::common_type<A, B>::type min(A a, B b)
{
    return b < a ? b : a;
}

template <class A, class B> static inline typename std::common_type<A, B>::type max(A a, B b)
{
    return a < b ? b : a;
}

template <class To, class From> static inline To cuemu_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

static inline float __int_as_float(int x)
{
    return cuemu_bits<float>(x);
}
static inline int __float_as_int(float x)
{
    return cuemu_bits<int>(x);
}
static inline float __uint_as_float(unsigned x)
{
    return cuemu_bits<float>(x);
}
static inline unsigned __float_as_uint(float x)
{
    return cuemu_bits<unsigned>(x);
}
static inline long long __double_as_longlong(double x)
{
    return cuemu_bits<long long>(x);
}
static inline double __longlong_as_double(long long x)
{
    return cuemu_bits<double>(x);
}

static inline float cuemu_expf(float x)
{
    return expf(x);
}
static inline float cuemu_exp2f(float x)
{
    return exp2f(x);
}
static inline float cuemu_logf(float x)
{
    return logf(x);
}
static inline float cuemu_log2f(float x)
{
    return log2f(x);
}
static inline float cuemu_powf(float x, float y)
{
    return powf(x, y);
}
static inline float cuemu_sinf(float x)
{
    return sinf(x);
}
static inline float cuemu_cosf(float x)
{
    return cosf(x);
}
static inline void cuemu_sincosf(float x, float *s, float *c)
{
    *s = sinf(x), *c = cosf(x);
}
static inline float rsqrtf(float x)
{
    return 1 / sqrtf(x);
}
static inline float __frsqrt_rn(float x)
{
    return 1 / sqrtf(x);
}
static inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}
static inline float __frcp_rn(float x)
{
    return 1 / x;
}
static inline float __fdividef(float x, float y)
{
    return x / y;
}
static inline float __fdiv_rn(float x, float y)
{
    return x / y;
}
static inline float __fadd_rn(float x, float y)
{
    return x + y;
}
static inline float __fsub_rn(float x, float y)
{
    return x - y;
}
static inline float __fmul_rn(float x, float y)
{
    return x * y;
}
static inline float __fmaf_rn(float x, float y, float z)
{
    return fmaf(x, y, z);
}
static inline double __dadd_rn(double x, double y)
{
    return x + y;
}
static inline double __dmul_rn(double x, double y)
{
    return x * y;
}
static inline float __saturatef(float x)
{
    return x > 0 ? (x < 1 ? x : 1) : 0;
}
static inline int __float2int_rn(float x)
{
    return (int)rintf(x);
}
static inline int __float2int_rz(float x)
{
    return (int)x;
}
static inline float __int2float_rn(int x)
{
    return (float)x;
}

static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __clzll(long long x)
{
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
static inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
static inline unsigned __umulhi(unsigned x, unsigned y)
{
    return (unsigned)((uint64_t)x * y >> 32);
}

/* ---- memory ---- */

template <class T> static inline T __ldg(const T *p)
{
    return *p;
}
template <class T> static inline T __ldcs(const T *p)
{
    return *p;
}
template <class T> static inline T __ldcg(const T *p)
{
    return *p;
}
template <class T> static inline void __stcs(T *p, T v)
{
    *p = v;
}
template <class T> static inline void __stcg(T *p, T v)
{
    *p = v;
}

template <class T, class F> static inline T cuemu_atomic(T *p, F f)
{
    T old, fresh;
    __atomic_load(p, &old, __ATOMIC_SEQ_CST);
    do
        fresh = f(old);
    while (!__atomic_compare_exchange(p, &old, &fresh, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return old;
}

template <class T> static inline T atomicAdd(T *p, T v)
{
    return cuemu_atomic(p, [=](T old) { return (T)(old + v); });
}

template <class T> static inline T atomicMax(T *p, T v)
{
    return cuemu_atomic(p, [=](T old) { return old < v ? v : old; });
}

template <class T> static inline T atomicMin(T *p, T v)
{
    return cuemu_atomic(p, [=](T old) { return v < old ? v : old; });
}

template <class T> static inline T atomicExch(T *p, T v)
{
    return cuemu_atomic(p, [=](T) { return v; });
}

template <class T> static inline T atomicCAS(T *p, T expected, T v)
{
    return cuemu_atomic(p, [=](T old) { return old == expected ? v : old; });
}
