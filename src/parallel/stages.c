#include "parallel/stages.h"

#include "core/mem.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ls_stages_model(const ls_model_config *c, int64_t B, int64_t T, ls_part_cost *cost)
{
    const double C = c->n_embd, V = c->vocab_size, R = (double)B * (double)T;
    const double linear = 2 * 12 * C * C * R, attention = 2 * 2 * C * R * (double)T / 2; /* causal: half of T x T */
    const double norms = 2 * R, lse = (double)c->n_head * R;
    cost[0] = (ls_part_cost){.fwd = C * R, .bwd_w = C * R, .act = 0};
    for (int l = 0; l < c->n_layer; l++)
        cost[1 + l] = (ls_part_cost){.fwd = linear + attention,
                                     .bwd_in = linear + 2.5 * attention, /* scores are made again */
                                     .bwd_w = linear,
                                     .act = 10 * C * R + 2 * norms + lse}; /* x, qkv, atty, res, fc */
    cost[1 + c->n_layer] = (ls_part_cost){.bwd_in = 3 * 2 * V * C * R + 10 * C * R, .act = 2 * C * R};
}

static double total(const ls_part_cost *c)
{
    return c->fwd + c->bwd_in + c->bwd_w;
}

static ls_status check_shape(int n_unit, int n_stage, int n_chunk)
{
    if (n_stage < 1 || n_chunk < 1)
        return ls_fail(LS_E_CONFIG, "pp=%d, interleaving %d: both must be 1 or more", n_stage, n_chunk);
    const int64_t part = (int64_t)n_stage * n_chunk;
    if (part > n_unit || part > LS_STAGES_MAX_PART)
        return ls_fail(
            LS_E_CONFIG,
            "%d blocks over pp=%d with interleaving %d: %d x %d = %lld parts, but the model has %d units (embed, %d blocks, head); pp x interleaving can be at most %d",
            n_unit - 2, n_stage, n_chunk, n_stage, n_chunk, (long long)part, n_unit, n_unit - 2,
            n_unit < LS_STAGES_MAX_PART ? n_unit : LS_STAGES_MAX_PART);
    return LS_OK;
}

/* ---- automatic ---- */

typedef struct cut {
    const double *sum; /* [n + 1]: cost of the units before */
    const int *thread; /* of each stage; NULL: all alike    */
    int n, k, n_stage;
    double *best; /* [(k + 1) * (n + 1)]: of the first i units in j parts */
    int *from;    /* where the last of these parts begins                 */
} cut;

/* Two rules share this table: the largest part (limit < 0), or the sum of squares of parts that do not exceed the
 * limit. */
static void fill(cut *c, double limit)
{
    const int w = c->n + 1;
    for (int i = 0; i <= c->n; i++) c->best[i] = i ? DBL_MAX : 0;
    for (int j = 1; j <= c->k; j++)
        for (int i = 0; i <= c->n; i++) {
            double *b = &c->best[j * w + i];
            *b = DBL_MAX;
            for (int h = j - 1; h < i; h++) {
                const double before = c->best[(j - 1) * w + h];
                const double part = (c->sum[i] - c->sum[h]) / (c->thread ? c->thread[(j - 1) % c->n_stage] : 1);
                if (before >= DBL_MAX || (limit >= 0 && part > limit)) continue;
                const double v = limit >= 0 ? before + part * part : before > part ? before : part;
                if (v >= *b) continue;
                *b = v;
                c->from[j * w + i] = h;
            }
        }
}

ls_status ls_stages_balance(ls_stages *out, const ls_part_cost *unit, int n_unit, int n_stage, int n_chunk,
                            const int *thread)
{
    LS_TRY(check_shape(n_unit, n_stage, n_chunk));
    const int k = n_stage * n_chunk, w = n_unit + 1;
    const size_t cells = (size_t)(k + 1) * (size_t)w;
    double *real = ls_alloc(((size_t)w + cells) * sizeof *real);
    int *from = ls_alloc(cells * sizeof *from);
    if (!real || !from) {
        ls_free(real);
        ls_free(from);
        return ls_nomem(cells * (sizeof *real + sizeof *from), "cutting a model into stages");
    }
    for (int u = 0; u < n_unit; u++) real[u + 1] = real[u] + total(&unit[u]);
    cut c = {real, thread, n_unit, k, n_stage, real + w, from};
    fill(&c, -1);
    fill(&c, c.best[k * w + n_unit] * (1 + 1e-12)); /* sums of the same units differ in their last bits */
    *out = (ls_stages){.n_unit = n_unit, .n_stage = n_stage, .n_chunk = n_chunk};
    for (int j = k, i = n_unit; j >= 0; i = j ? from[j * w + i] : 0, j--) out->first[j] = i;
    ls_free(real);
    ls_free(from);
    return LS_OK;
}

/* Time of a stage, all its chunks; the slowest one's. */
static double slowest(const ls_stages *s, const ls_part_cost *unit, const int *thread)
{
    double most = 0;
    for (int k = 0; k < s->n_stage; k++) {
        double sum = 0;
        for (int c = 0; c < s->n_chunk; c++)
            for (int u = s->first[c * s->n_stage + k]; u < s->first[c * s->n_stage + k + 1]; u++)
                sum += total(&unit[u]);
        sum /= thread[k];
        if (sum > most) most = sum;
    }
    return most;
}

ls_status ls_stages_share(ls_stages *out, int *thread, const ls_part_cost *unit, int n_unit, int n_stage, int n_chunk,
                          int n_thread)
{
    if (n_thread < n_stage) n_thread = n_stage;
    /* not far from equal: memory should stay so, too, and threads of one stage share its rows */
    const int low = n_thread / n_stage > 3 ? n_thread / n_stage - n_thread / n_stage / 4 : 1,
              high = n_thread / n_stage + n_thread / n_stage / 2;
    for (int k = 0; k < n_stage; k++) thread[k] = n_thread / n_stage + (k >= n_stage - n_thread % n_stage);
    LS_TRY(ls_stages_balance(out, unit, n_unit, n_stage, n_chunk, thread));
    for (int turn = 0; turn < n_thread; turn++) { /* a thread goes where it helps, as long as it does */
        double best = slowest(out, unit, thread);
        int best_from = -1, best_to = -1;
        for (int from = 0; from < n_stage; from++)
            for (int to = 0; to < n_stage; to++) {
                if (from == to || thread[from] - 1 < low || thread[to] + 1 > high) continue;
                ls_stages trial;
                thread[from]--, thread[to]++;
                LS_TRY(ls_stages_balance(&trial, unit, n_unit, n_stage, n_chunk, thread));
                const double then = slowest(&trial, unit, thread);
                thread[from]++, thread[to]--;
                if (then < best * (1 - 1e-9)) best = then, best_from = from, best_to = to;
            }
        if (best_from < 0) return LS_OK;
        thread[best_from]--, thread[best_to]++;
        LS_TRY(ls_stages_balance(out, unit, n_unit, n_stage, n_chunk, thread));
    }
    return LS_OK;
}

/* ---- --stages ---- */

static bool unit_number(const char **p, int *out)
{
    if (**p < '0' || **p > '9') return false;
    char *end = NULL;
    const long v = strtol(*p, &end, 10);
    if (v > 1000000) return false;
    *p = end;
    *out = (int)v;
    return true;
}

/* "unit 4 is" or "units 4-6 are" */
static const char *units_words(int a, int b, char buf[64])
{
    if (a == b) snprintf(buf, 64, "unit %d is", a);
    else snprintf(buf, 64, "units %d-%d are", a, b);
    return buf;
}

/* One "a-b" or "a" and the comma after it. */
static ls_status parse_run(const char *text, const char **p, int *a, int *b)
{
    const int column = (int)(*p - text) + 1;
    if (!unit_number(p, a)) return ls_fail(LS_E_ARG, "--stages %s: column %d: expected a unit number", text, column);
    *b = *a;
    if (**p == '-') {
        ++*p;
        if (!unit_number(p, b))
            return ls_fail(LS_E_ARG, "--stages %s: column %d: the last unit of %d- is missing", text, column, *a);
    }
    if (**p == ',' && (*p)[1]) ++*p;
    else if (**p) return ls_fail(LS_E_ARG, "--stages %s: column %d: unexpected '%c'", text, (int)(*p - text) + 1, **p);
    return *a <= *b ? LS_OK
                    : ls_fail(LS_E_ARG, "--stages %s: %d-%d: the first unit must not be after the last", text, *a, *b);
}

ls_status ls_stages_parse(ls_stages *out, const char *text, int n_unit, int n_stage, int n_chunk)
{
    LS_TRY(check_shape(n_unit, n_stage, n_chunk));
    ls_stages s = {.n_unit = n_unit, .n_stage = n_stage, .n_chunk = n_chunk};
    const int n_part = n_stage * n_chunk;
    int next = 0, g = 0;
    char words[64];
    for (const char *p = text; g == 0 || *p; g++) {
        int a, b;
        LS_TRY(parse_run(text, &p, &a, &b));
        if (b >= n_unit)
            return ls_fail(LS_E_ARG, "--stages %s: unit %d does not exist; units are 0 to %d (embed, %d blocks, head)",
                           text, b, n_unit - 1, n_unit - 2);
        if (a > next) return ls_fail(LS_E_ARG, "--stages %s: %s on no stage", text, units_words(next, a - 1, words));
        if (a < next)
            return ls_fail(LS_E_ARG, "--stages %s: %s on two stages", text,
                           units_words(a, b < next - 1 ? b : next - 1, words));
        if (g < n_part) s.first[g] = a;
        next = b + 1;
    }
    if (next != n_unit)
        return ls_fail(LS_E_ARG, "--stages %s: %s on no stage", text, units_words(next, n_unit - 1, words));
    if (g != n_part)
        return ls_fail(LS_E_ARG, "--stages %s: %d part%s, but pp=%d x interleaving %d needs %d", text, g,
                       g == 1 ? "" : "s", n_stage, n_chunk, n_part);
    s.first[n_part] = n_unit;
    *out = s;
    return LS_OK;
}

/* ---- costs ---- */

void ls_stages_costs(const ls_stages *s, const ls_part_cost *unit, ls_part_cost *part)
{
    for (int g = 0; g < s->n_stage * s->n_chunk; g++) {
        part[g] = (ls_part_cost){0};
        for (int u = s->first[g]; u < s->first[g + 1]; u++) {
            part[g].fwd += unit[u].fwd;
            part[g].bwd_in += unit[u].bwd_in;
            part[g].bwd_w += unit[u].bwd_w;
            part[g].act += unit[u].act;
        }
    }
}

static void unit_word(int u, int n_unit, char buf[24])
{
    if (u == 0) snprintf(buf, 24, "embed");
    else if (u == n_unit - 1) snprintf(buf, 24, "head");
    else snprintf(buf, 24, "block %d", u - 1);
}

void ls_stages_print(const ls_stages *s, const ls_part_cost *unit, ls_str *out)
{
    double all = 0;
    for (int u = 0; u < s->n_unit; u++) all += total(&unit[u]);
    for (int g = 0; g < s->n_stage * s->n_chunk; g++) {
        double part = 0;
        for (int u = s->first[g]; u < s->first[g + 1]; u++) part += total(&unit[u]);
        char a[24], b[24], chunk[24] = "";
        unit_word(s->first[g], s->n_unit, a);
        unit_word(s->first[g + 1] - 1, s->n_unit, b);
        if (s->n_chunk > 1) snprintf(chunk, sizeof chunk, " chunk %d", g / s->n_stage);
        ls_str_addf(out, "stage %d%s: units %d-%d, %s", g % s->n_stage, chunk, s->first[g], s->first[g + 1] - 1, a);
        if (s->first[g + 1] - s->first[g] > 1) ls_str_addf(out, " to %s", b);
        ls_str_addf(out, ", %.1f %% of the work\n", all > 0 ? 100 * part / all : 0);
    }
}
