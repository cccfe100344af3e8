/* r3.h - the flags of the translation study's scripts (docs/REFERENCES.md) as flags of `lockstep train`.
 *
 *   --world_size N             --n N; with --model_parallel_mode, N pipeline stages                     [2]
 *   --batch_size B             the global batch: B / N sequences per worker                             [128; pipeline 32]
 *   --n_epochs E               --epochs E                                                               [10; pipeline 2]
 *   --learning_rate R          --lr R, constant, AdamW with PyTorch's defaults, no clipping             [1e-4]
 *   --model_max_length M       --seq_length M                                                           [128]
 *   --dataset DIR              --data DIR
 *   --model_parallel_mode      model_parallel: --pp N --schedule naive; pipeline_parallel: --pp N --schedule gpipe
 *   --n_chunk C                micro-batches of a pipelined batch                                       [4]
 *
 * Any of them sets the defaults of all. They come before the other arguments, which therefore override them. */
#ifndef LS_CONFIG_R3_H
#define LS_CONFIG_R3_H

#include "config/options.h"
#include "core/argv.h"

/* Appends the arguments to *out, the translation study's flags replaced, and sets *p. Without any of them nothing
 * changes, unless `always`. LS_E_ARG, LS_E_CONFIG (a batch that cannot be divided). */
ls_status ls_train_r3_words(int argc, char **argv, bool always, ls_argv *out, ls_train_preset *p);

#endif
