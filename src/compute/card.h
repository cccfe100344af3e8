/* card.h - what a GPU can do, by compute capability: the one table from which kernel families, precisions and limits are chosen. The key is the
 * lesser of the card and the architecture of the code that is loaded: PTX of 7.5 on an H200 is a 7.5. */
#ifndef LS_COMPUTE_CARD_H
#define LS_COMPUTE_CARD_H

#include <stdbool.h>
#include <stddef.h>

typedef struct ls_card {
    int capability;   /* 75: 7.5; a row holds up to the next one                               */
    const char *name; /* of the architecture                                                  */
    int mma;          /* products of a warp: 70 m8n8k4, 75 m16n8k8 in f16, 80 m16n8k16, bf16, TF32 */
    bool ldmatrix;    /* loads of tiles of 8x8 by a warp                                      */
    bool cp_async;    /* asynchronous copies into shared memory                               */
    bool bf16, fp8;   /* types of its products, beside f16 and fp32                           */
    bool wgmma;       /* products by a warpgroup, tensor copies (code of 90a alone)           */
    int shared;       /* bytes of shared memory that a block may have                         */
} ls_card;

/* NULL: older than 7.0, which is not supported. */
static inline const ls_card *ls_card_of(int capability)
{
    static const ls_card row[] = {
        {70, "Volta", 70, false, false, false, false, false, 96 << 10},
        {75, "Turing", 75, true, false, false, false, false, 64 << 10},
        {80, "Ampere", 80, true, true, true, false, false, 163 << 10},
        {86, "Ampere", 80, true, true, true, false, false, 99 << 10},
        {87, "Ampere", 80, true, true, true, false, false, 163 << 10},
        {89, "Ada", 80, true, true, true, true, false, 99 << 10},
        {90, "Hopper", 80, true, true, true, true, true, 227 << 10},
        {100, "Blackwell", 80, true, true, true, true, false, 227 << 10},
        {120, "Blackwell", 80, true, true, true, true, false, 99 << 10},
    };
    const ls_card *found = NULL;
    for (size_t i = 0; i < sizeof row / sizeof *row && row[i].capability <= capability; i++) found = &row[i];
    return found;
}

/* What a card does with code of the architecture `code`. 0 of either: unknown, NULL. */
static inline const ls_card *ls_card_with(int capability, int code)
{
    return ls_card_of(capability < code ? capability : code);
}

#endif
