/* wgmma_emu.h - kernels/wgmma.cuh for the emulated device; fake_cuda/hopper.h says what it checks. */
#ifndef LS_WGMMA_EMU_H
#define LS_WGMMA_EMU_H

#include "fake_cuda/hopper.h"

#define WG_COMPILED 1

typedef emu_tensor_map tensor_map;

static inline int tensor_map_of(tensor_map *m, const void *x, int nbytes, int64_t columns, int64_t ld, int64_t T,
                                int64_t B, int rows)
{
    if ((uintptr_t)x % 16 || ld * nbytes % 16 || columns < 1 || ld < columns || T < 1 || B < 1 || rows > 256)
        return (int)cudaErrorInvalidValue; /* as the driver would */
    *m = emu_tensor_map{(const char *)x, columns, ld, T, B, nbytes, rows};
    return 0;
}

static inline uint32_t shared_offset(saddr at)
{
    return (uint32_t)(at - (char *)emu_dynamic_shared());
}

static inline void wgmma_fence()
{
    emu_wgmma_fence();
}

static inline void wgmma_commit()
{
    emu_wgmma_commit();
}

template <int PENDING, class... D> static inline void wgmma_wait(D &...)
{
    emu_wgmma_wait(PENDING);
}

template <class E> static inline float emu_word_part(uint16_t x)
{
    return emu_part(x, 0, E());
}

template <class E, bool ADD> static inline void wgmma_tiles(float (&d)[8][4], uint64_t a, uint64_t b)
{
    emu_wgmma(&d[0][0], 64, nullptr, a, b, ADD, false, emu_word_part<E>);
}

template <class E> static inline void wgmma_registers(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b)
{
    emu_wgmma(&d[0][0], 64, a, 0, b, true, true, emu_word_part<E>);
}

static inline void wgmma_wide(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b, int add)
{
    emu_wgmma(&d[0][0], 128, a, 0, b, add != 0, false, emu_word_part<bf16>);
}

static inline void mbar_init(saddr bar, int arrivals)
{
    emu_mbar_init(bar, arrivals);
}

static inline void mbar_init_fence() {}

static inline void mbar_arrive(saddr bar)
{
    emu_mbar_arrive(bar, 0);
}

static inline void mbar_arrive_expect(saddr bar, int nbytes)
{
    emu_mbar_arrive(bar, nbytes);
}

static inline void mbar_wait(saddr bar, int parity)
{
    emu_mbar_wait(bar, parity);
}

static inline void tile_load(saddr tile, const tensor_map *m, int column, int row, int b, saddr bar)
{
    emu_tile_load(tile, m, column, row, b, bar);
}

static inline void bytes_load(saddr to, const void *from, int nbytes, saddr bar)
{
    emu_bytes_load(to, from, nbytes, bar);
}

static inline void proxy_fence() {}

static inline void threads_meet(int id, int n)
{
    emu_barrier(id, n, false);
}

template <int N> static inline void registers_more() {}
template <int N> static inline void registers_less() {}

#endif
