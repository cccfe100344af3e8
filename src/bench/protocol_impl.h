/* protocol_impl.h - shared by protocol.c and protocol_check.c. */
#ifndef LS_BENCH_PROTOCOL_IMPL_H
#define LS_BENCH_PROTOCOL_IMPL_H

#include "bench/protocol.h"

/* train, the arguments of the side, --checkpoint_path dir */
ls_status bench_words(const ls_bench_side *s, const char *dir, ls_argv *out);
/* The status for an exit code of `train`. If several statuses share the code, its stderr (may be NULL) decides. */
ls_status bench_status(int code, const char *said);
/* The last lines of dir/name. */
void bench_tail(const char *dir, const char *name, int lines, ls_str *out);
/* "lockstep: [rank 2: ]configuration cannot work: MESSAGE\n  at …" -> MESSAGE; other text is unchanged. */
void bench_own_words(ls_str *text);

#endif
