#include "config/layout.h"

#include <stdio.h>
#include <string.h>

static const char *const strategies[] = {"single", "dp", "ddp", "zero1", "zero2", "zero3"};

static bool one_part(const char *part, ls_layout *l)
{
    for (size_t i = 0; i < sizeof strategies / sizeof strategies[0]; i++)
        if (!strcmp(part, strategies[i])) {
            if (l->strategy[0]) return false;
            snprintf(l->strategy, sizeof l->strategy, "%s", part);
            return true;
        }
    const bool pp = !strncmp(part, "pp", 2), tp = !strncmp(part, "tp", 2);
    if (!pp && !tp) return false;
    int *n = pp ? &l->pp : &l->tp;
    const char *dash = strchr(part, '-');
    char digits[8];
    const size_t len = dash ? (size_t)(dash - part) - 2 : strlen(part) - 2;
    int64_t v = 0;
    if (*n != 1 || len >= sizeof digits || (dash && tp)) return false;
    snprintf(digits, sizeof digits, "%.*s", (int)len, part + 2);
    if (len && (!ls_parse_i64(digits, &v) || v < 2 || v > 4096)) return false;
    *n = (int)v;
    if (!dash) return true;
    snprintf(l->schedule, sizeof l->schedule, "%s", dash + 1);
    return dash[1] && strlen(dash + 1) < sizeof l->schedule;
}

ls_status ls_layout_parse(const char *word, ls_layout *out)
{
    ls_layout l = {.pp = 1, .tp = 1};
    const char *p = word;
    bool ok = *word;
    while (ok && *p) {
        char part[80];
        const size_t n = strcspn(p, "+");
        ok = n && n < sizeof part;
        if (ok) {
            memcpy(part, p, n);
            part[n] = '\0';
            ok = one_part(part, &l);
        }
        p += n + (p[n] == '+' && p[n + 1]);
        if (*p == '+') ok = false;
    }
    if (!ok)
        return ls_fail(
            LS_E_ARG,
            "'%s' is not a layout; use single, dp, ddp, zero1, zero2, zero3, pp[P][-SCHEDULE], tp[T], or a combination joined by + (ddp+pp2-1f1b)",
            word);
    *out = l;
    return LS_OK;
}

bool ls_layout_fit(ls_layout *l, int workers, char *why, size_t n_why)
{
    if (!l->pp && !l->tp) {
        snprintf(why, n_why, "pp and tp without a number cannot both take all workers");
        return false;
    }
    if (!l->pp) l->pp = workers / l->tp;
    if (!l->tp) l->tp = workers / l->pp;
    const int each = l->pp * l->tp;
    why[0] = '\0';
    if (!each || workers % each || each > workers)
        snprintf(why, n_why, "%d workers are no multiple of %d stages x %d", workers, l->pp, l->tp);
    else if (l->strategy[0] && strcmp(l->strategy, "single") && workers / each == 1)
        snprintf(why, n_why, "%s needs at least two replicas; %d workers make one", l->strategy, workers);
    else if (!strcmp(l->strategy, "single") && workers / each > 1)
        snprintf(why, n_why, "single is one worker, not %d", workers);
    else if (workers > 1 && !l->strategy[0] && workers / each > 1) snprintf(l->strategy, sizeof l->strategy, "ddp");
    return !why[0];
}

int ls_layout_dp(const ls_layout *l, int workers)
{
    return workers / (l->pp * l->tp);
}

static ls_status add_pair(ls_argv *out, const char *flag, const char *value)
{
    LS_TRY(ls_argv_add(out, flag));
    return ls_argv_add(out, value);
}

static ls_status add_int(ls_argv *out, const char *flag, int value)
{
    LS_TRY(ls_argv_add(out, flag));
    return ls_argv_addf(out, "%d", value);
}

ls_status ls_layout_words(const ls_layout *l, int workers, ls_argv *out)
{
    const bool pipe = l->pp > 1;
    LS_TRY(add_int(out, "-n", workers));
    if (l->strategy[0]) LS_TRY(add_pair(out, "--strategy", l->strategy));
    if (pipe) LS_TRY(add_int(out, "--pp", l->pp));
    if (pipe && l->schedule[0]) LS_TRY(add_pair(out, "--schedule", l->schedule));
    if (pipe && !strcmp(l->schedule, "interleaved")) LS_TRY(add_int(out, "--interleave", 2));
    return l->tp > 1 ? add_int(out, "--tp", l->tp) : LS_OK;
}
