/* hopper.h - the emulated device's barriers in shared memory, copy engine and products by warpgroups. They happen as late as they may:
 *
 *   copies     the target is NaN bytes from the call on, and has the data when the barrier's phase is complete and a thread waits for it. A tile that
 *              is given to the copy engine while it is still read, or read before it was waited for, gives NaN
 *   products   are computed in wgmma_wait. Until then their sums are NaN. It stops if, meanwhile, an operand or a sum changed, if the warps of a
 *              warpgroup issue different products, or if there was no wgmma_fence after the last wait
 *   barriers   it stops if bytes and copies do not match, and if a block ends with copies or products in flight
 *
 * Operands are decoded from the bits of their descriptors as in the PTX manual: start, stride, 128-byte swizzle by address bits. Not found: a missing
 * proxy_fence. */
#ifndef LS_EMU_HOPPER_H
#define LS_EMU_HOPPER_H

#include "fake_cuda/emu.h"

struct emu_tensor_map { /* (B,T,columns) elements of 2 or 4 bytes, rows ld apart */
    const char *x;
    int64_t columns, ld, T, B;
    int nbytes, rows; /* of an element, of a part */
};

void emu_mbar_init(char *bar, int arrivals);
void emu_mbar_arrive(char *bar, int nbytes); /* and expects so many bytes */
void emu_mbar_wait(char *bar, int parity);
void emu_tile_load(char *tile, const emu_tensor_map *m, int column, int row, int b, char *bar);
void emu_bytes_load(char *to, const void *from, int nbytes, char *bar);

/* d: n/2 sums of a product of n columns, 64 or 128. a: 4 registers, or NULL: the tile of desc_a. rows: B's rows are K, as they are in the tile. */
void emu_wgmma(float *d, int n, const uint32_t *a, uint64_t desc_a, uint64_t desc_b, bool add, bool rows,
               float (*number)(uint16_t));
void emu_wgmma_fence(void);
void emu_wgmma_commit(void);
void emu_wgmma_wait(int pending);

#endif
