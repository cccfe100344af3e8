/* no_sdpa.c - sdpa.h where this build has no cuDNN: it is never open. */
#include "compute/cuda/sdpa.h"

ls_status cu_sdpa_open(cu_sdpa **out, void *stream, ls_dtype dt, bool deterministic, int *version)
{
    (void)out, (void)stream, (void)dt, (void)deterministic, (void)version;
    return ls_fail(LS_E_UNSUPPORTED, "built without cuDNN");
}

void cu_sdpa_close(cu_sdpa *s)
{
    (void)s;
}

ls_status cu_sdpa_plan(cu_sdpa *s, bool backward, int64_t B, int64_t T, int64_t H, int64_t D, size_t *nbytes)
{
    (void)s, (void)backward, (void)B, (void)T, (void)H, (void)D, (void)nbytes;
    return LS_E_UNSUPPORTED;
}

ls_status cu_sdpa_run(cu_sdpa *s, bool backward, const cu_attention_job *j)
{
    (void)s, (void)backward, (void)j;
    return LS_E_UNSUPPORTED;
}
