/* gemm_state_amx.c - whether this process may use AMX, and the tile configuration of a thread; for both kernels that use tiles. */
#include "compute/cpu/gemm_impl.h"

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Palette 1, eight tiles of 16 rows x 64 bytes. In memory for good: the instruction reads all of it, whatever the compiler
 * believes. */
static const struct {
    _Alignas(64) uint8_t palette; /* aligned alone: the others follow it byte by byte */
    uint8_t start_row, reserved[14];
    uint16_t row_nbytes[16];
    uint8_t rows[16];
} config = {
    .palette = 1,
    .row_nbytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

_Static_assert(sizeof config == 64, "the layout of ldtilecfg's operand");

void gemm_amx_enter(void)
{
    _tile_loadconfig(&config);
}

void gemm_amx_leave(void)
{
    _tile_release();
}

/* The instructions, the operating system's support for their registers (XCR0 bits 17, 18) and its permission to use them. */
bool gemm_amx_usable(void)
{
    unsigned a, b, c, d;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl") ||
        !__builtin_cpu_supports("avx512bf16"))
        return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & (1u << 22)) || !(d & (1u << 24))) return false;
    unsigned xcr0, high;
    __asm__ volatile("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
    if ((xcr0 & (3u << 17)) != (3u << 17)) return false;
    enum { REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XTILEDATA) == 0;
}
