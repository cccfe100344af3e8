/* layout.h - a layout as a word: how workers share the work, as flags of `train`.
 *
 *   single | dp | ddp | zero1 | zero2 | zero3       one strategy over all workers
 *   pp[P][-SCHEDULE]                                a pipeline of P stages [all workers]; naive, gpipe, 1f1b, interleaved, zb
 *   tp[T]                                           layers split over T workers [all]
 *   A+B…                                            hybrids: ddp+pp2-1f1b, zero1+tp2 */
#ifndef LS_CONFIG_LAYOUT_H
#define LS_CONFIG_LAYOUT_H

#include "core/argv.h"

typedef struct ls_layout {
    char strategy[16]; /* empty: none named */
    char schedule[64]; /* empty: train's default */
    int pp, tp;        /* 1: none; 0: all workers that are left */
} ls_layout;

/* LS_E_ARG with the grammar. */
ls_status ls_layout_parse(const char *word, ls_layout *out);
/* For `workers`: fills in what is open; false with the reason when the layout has no sense there. */
bool ls_layout_fit(ls_layout *l, int workers, char *why, size_t n_why);
int ls_layout_dp(const ls_layout *l, int workers); /* replicas of a fitted one */
/* -n and the flags of a fitted one. */
ls_status ls_layout_words(const ls_layout *l, int workers, ls_argv *out);

#endif
