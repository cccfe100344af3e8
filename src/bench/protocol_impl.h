/* protocol_impl.h - shared by protocol.c and protocol_check.c. */
#ifndef LS_BENCH_PROTOCOL_IMPL_H
#define LS_BENCH_PROTOCOL_IMPL_H

#include "bench/protocol.h"

/* train, the side's words, --checkpoint_path dir */
ls_status bench_words(const ls_bench_side *s, const char *dir, ls_argv *out);
/* What an exit code of `train` means; where statuses share it, what its stderr said (may be NULL) decides. */
ls_status bench_status(int code, const char *said);
/* The last lines of dir/name, for people. */
void bench_tail(const char *dir, const char *name, int lines, ls_str *out);
/* "lockstep: [rank 2: ]configuration cannot work: WORDS\n  at …" -> WORDS; anything else stays. */
void bench_own_words(ls_str *text);

#endif
