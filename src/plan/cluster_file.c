/* cluster_file.c - reading and writing; planner_rates.c has what the numbers mean. */
#include "plan/cluster_file.h"

#include "core/fs.h"
#include "core/json.h"
#include "core/mem.h"

#include <stdio.h>
#include <string.h>

const char *ls_unit_time_word(ls_unit_time k)
{
    switch (k) {
#define X(name, word) \
    case name: return word;
        LS_UNIT_TIME_LIST(X)
#undef X
    case LS_N_UNIT_TIME: break;
    }
    return "?";
}

static const ls_dtype precision[LS_N_PRECISION] = {LS_F32, LS_BF16, LS_F16};
static const char *const precision_word[LS_N_PRECISION] = {"fp32", "bf16", "fp16"};

int ls_precision_index(ls_dtype dt)
{
    return dt == LS_BF16 ? 1 : dt == LS_F16 ? 2 : 0;
}

const char *ls_precision_word(ls_dtype dt)
{
    return precision_word[ls_precision_index(dt)];
}

bool ls_precision_parse(const char *word, ls_dtype *out)
{
    for (int k = 0; k < LS_N_PRECISION; k++) {
        if (strcmp(word, precision_word[k])) continue;
        *out = precision[k];
        return true;
    }
    return false;
}

void ls_cluster_fini(ls_cluster *c)
{
    ls_free(c->units);
    ls_free(c->passes);
    ls_free(c->curve);
    *c = (ls_cluster){0};
}

/* Room for one more of a growing array; NULL when there is none. */
static void *one_more(void **array, int *n, size_t size)
{
    void *p = ls_realloc(*array, (size_t)(*n + 1) * size);
    if (!p) return NULL;
    *array = p;
    return (char *)p + (size_t)(*n)++ * size;
}

#define ADD(array, count, value, what)                                            \
    do {                                                                          \
        void *array_ = (array);                                                   \
        void *at_ = one_more(&array_, &(count), sizeof *(value));                 \
        if (!at_) return ls_nomem(((size_t)(count) + 1) * sizeof *(value), what); \
        (array) = array_;                                                         \
        memcpy(at_, (value), sizeof *(value));                                    \
        return LS_OK;                                                             \
    } while (0)

ls_status ls_cluster_add_units(ls_cluster *c, const ls_cluster_units *u)
{
    ADD(c->units, c->n_units, u, "a cluster's units");
}
ls_status ls_cluster_add_passes(ls_cluster *c, const ls_cluster_passes *p)
{
    ADD(c->passes, c->n_passes, p, "a cluster's passes");
}
ls_status ls_cluster_add_curve(ls_cluster *c, const ls_cluster_curve *v)
{
    ADD(c->curve, c->n_curve, v, "a cluster's curves");
}

/* ---- writing ---- */

static void write_units(ls_jsonw *w, const ls_cluster *c)
{
    ls_jsonw_put_open(w, "units", '[');
    for (int i = 0; i < c->n_units; i++) {
        const ls_cluster_units *u = &c->units[i];
        ls_jsonw_open(w, '{');
        ls_jsonw_put_int(w, "workers", u->workers);
        ls_jsonw_put_int(w, "threads", u->threads);
        ls_jsonw_put_int(w, "tp", u->tp);
        ls_jsonw_put_int(w, "n_embd", u->n_embd);
        ls_jsonw_put_int(w, "n_head", u->n_head);
        ls_jsonw_put_int(w, "vocab_size", u->vocab);
        ls_jsonw_put_bool(w, "dropout", u->dropout);
        ls_jsonw_put_str(w, "precision", ls_precision_word(u->dtype));
        ls_jsonw_put_int(w, "micro_batch", u->B);
        ls_jsonw_put_int(w, "seq_length", u->T);
        for (int k = 0; k < LS_N_UNIT_TIME; k++) ls_jsonw_put_real(w, ls_unit_time_word((ls_unit_time)k), u->sec[k]);
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

static void write_passes(ls_jsonw *w, const ls_cluster *c)
{
    ls_jsonw_put_open(w, "passes", '[');
    for (int i = 0; i < c->n_passes; i++) {
        const ls_cluster_passes *p = &c->passes[i];
        ls_jsonw_open(w, '{');
        ls_jsonw_put_int(w, "workers", p->workers);
        ls_jsonw_put_str(w, "precision", ls_precision_word(p->dtype));
        ls_jsonw_put_real(w, "adamw", p->adamw);
        ls_jsonw_put_real(w, "adamw_alone", p->alone);
        ls_jsonw_put_real(w, "sum_of_squares", p->sumsq);
        ls_jsonw_put_real(w, "add", p->add);
        ls_jsonw_put_real(w, "overlap", p->overlap);
        ls_jsonw_put_real(w, "step", p->step);
        ls_jsonw_put_real(w, "apart", p->apart);
        ls_jsonw_put_real(w, "beside", p->beside);
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

static void write_curves(ls_jsonw *w, const ls_cluster *c)
{
    ls_jsonw_put_open(w, "collectives", '[');
    for (int i = 0; i < c->n_curve; i++) {
        const ls_cluster_curve *v = &c->curve[i];
        ls_jsonw_open(w, '{');
        ls_jsonw_put_str(w, "kind", ls_coll_word(v->kind));
        ls_jsonw_put_int(w, "workers", v->workers);
        ls_jsonw_put_open(w, "bytes", '[');
        for (int k = 0; k < v->n; k++) ls_jsonw_real(w, v->bytes[k]);
        ls_jsonw_close(w);
        ls_jsonw_put_open(w, "seconds", '[');
        for (int k = 0; k < v->n; k++) ls_jsonw_real(w, v->sec[k]);
        ls_jsonw_close(w);
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

static void write_link(ls_jsonw *w, const char *key, ls_link l)
{
    ls_jsonw_put_open(w, key, '{');
    ls_jsonw_put_real(w, "latency", l.latency);
    ls_jsonw_put_real(w, "bandwidth", l.bandwidth);
    ls_jsonw_close(w);
}

static void write_rates(ls_jsonw *w, const ls_cluster *c)
{
    ls_jsonw_put_open(w, "rates", '{');
    for (int k = 0; k < LS_N_PRECISION; k++) {
        const ls_cluster_rates *r = &c->rates[k];
        if (r->matmul <= 0 && r->peak <= 0) continue;
        ls_jsonw_put_open(w, precision_word[k], '{');
        if (r->matmul > 0) ls_jsonw_put_real(w, "matmul_flops", r->matmul);
        if (r->attention > 0) ls_jsonw_put_real(w, "attention_flops", r->attention);
        if (r->peak > 0) ls_jsonw_put_real(w, "peak_flops", r->peak);
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

void ls_cluster_text(const ls_cluster *c, ls_str *out)
{
    ls_jsonw w;
    ls_jsonw_init(&w, out, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_str(&w, "format", LS_CLUSTER_FORMAT);
    ls_jsonw_put_str(&w, "name", c->name);
    ls_jsonw_put_str(&w, "source", c->source);
    ls_jsonw_put_str(&w, "device", c->cpu ? "cpu" : "gpu");
    ls_jsonw_put_int(&w, "hosts", c->hosts);
    ls_jsonw_put_int(&w, "devices_per_host", c->devices);
    ls_jsonw_put_int(&w, "memory_bytes", c->memory);
    ls_jsonw_put_int(&w, "wire_bytes_per_element", c->wire_bytes);
    ls_jsonw_put_int(&w, "update_bytes_per_parameter", c->update_bytes);
    if (c->matmul > 0) ls_jsonw_put_real(&w, "matmul_flops", c->matmul);
    ls_jsonw_put_real(&w, "memory_bandwidth", c->bandwidth);
    write_rates(&w, c);
    ls_jsonw_put_real(&w, "unit_overhead", c->unit_overhead);
    ls_jsonw_put_real(&w, "product_ramp", c->ramp);
    ls_jsonw_put_real(&w, "step_overhead", c->step_overhead);
    if (c->power > 0) ls_jsonw_put_real(&w, "power_watts", c->power);
    ls_jsonw_put_real(&w, "overlap", c->overlap);
    write_link(&w, "link_inside_host", c->inside);
    write_link(&w, "link_between_hosts", c->between);
    write_units(&w, c);
    write_passes(&w, c);
    write_curves(&w, c);
    ls_jsonw_close(&w);
    ls_str_addc(out, '\n');
}

/* ---- reading ---- */

/* What a file may say at most: beyond it is a slip, and sums would overflow. */
#define MOST_REAL  1e30
#define MOST_BYTES 4e18
enum { MOST_PLACES = 65536, MOST_SIZE = 1 << 24 };

typedef struct reader {
    const char *path;
    char at[64]; /* "units[3]." */
} reader;

static ls_status wrong(const reader *r, const char *key, const char *words)
{
    return ls_fail(LS_E_FORMAT, "%s: %s%s %s", r->path, r->at, key, words);
}

/* A number from lo to hi; a missing one keeps what *to has, unless it is needed. */
static ls_status between(const reader *r, const json_t *o, const char *key, bool need, double lo, double hi, double *to)
{
    const json_t *v = json_object_get(o, key);
    if (!v) return need ? wrong(r, key, "is missing") : LS_OK;
    if (!json_is_number(v)) return wrong(r, key, "is not a number");
    *to = json_number_value(v);
    char words[64];
    if (*to < lo) snprintf(words, sizeof words, "is %g and must be at least %g", *to, lo);
    else snprintf(words, sizeof words, "is %g and must be at most %g", *to, hi);
    return *to >= lo && *to <= hi ? LS_OK : wrong(r, key, words);
}

static ls_status real(const reader *r, const json_t *o, const char *key, bool need, double lo, double *to)
{
    return between(r, o, key, need, lo, MOST_REAL, to);
}

static ls_status share(const reader *r, const json_t *o, const char *key, bool need, double lo, double *to)
{
    LS_TRY(real(r, o, key, need, lo, to));
    return *to <= 1 ? LS_OK : wrong(r, key, "is a share: at most 1");
}

/* From 1 to `most`, which keeps products of two in 64 bits and sums of them in a double. */
static ls_status whole(const reader *r, const json_t *o, const char *key, bool need, int most, int *to)
{
    double v = *to;
    LS_TRY(between(r, o, key, need, 1, most, &v));
    if (json_object_get(o, key) && v != (double)(int)v) return wrong(r, key, "is not a whole number");
    *to = (int)v;
    return LS_OK;
}

static ls_status seconds(const reader *r, const json_t *o, const char *key, double *to)
{
    LS_TRY(real(r, o, key, true, 0, to));
    return *to > 0 ? LS_OK : wrong(r, key, "is 0: nothing is done in no time");
}

static ls_status words_of(const reader *r, const json_t *o, const char *key, bool need, const char **to)
{
    const json_t *v = json_object_get(o, key);
    if (!v) return need ? wrong(r, key, "is missing") : LS_OK;
    if (!json_is_string(v)) return wrong(r, key, "is not text");
    *to = json_string_value(v);
    return LS_OK;
}

static ls_status read_link(reader *r, const json_t *root, const char *key, ls_link *l)
{
    const json_t *o = json_object_get(root, key);
    if (!o) return LS_OK;
    if (!json_is_object(o)) return wrong(r, key, "is not an object");
    snprintf(r->at, sizeof r->at, "%s.", key);
    LS_TRY(real(r, o, "latency", true, 0, &l->latency));
    LS_TRY(real(r, o, "bandwidth", true, 0, &l->bandwidth));
    r->at[0] = '\0';
    return LS_OK;
}

/* fp32 where it is missing. */
static ls_status read_precision(const reader *r, const json_t *o, ls_dtype *to)
{
    const char *word = "fp32";
    LS_TRY(words_of(r, o, "precision", false, &word));
    return ls_precision_parse(word, to) ? LS_OK : wrong(r, "precision", "is none of fp32, bf16, fp16");
}

static ls_status read_rates(reader *r, const json_t *root, ls_cluster *c)
{
    const json_t *all = json_object_get(root, "rates"), *one;
    const char *word;
    if (!all) return LS_OK;
    if (!json_is_object(all)) return wrong(r, "rates", "is not an object");
    json_object_foreach((json_t *)(uintptr_t)all, word, one)
    {
        ls_dtype dt;
        snprintf(r->at, sizeof r->at, "rates.%.20s.", word);
        if (!ls_precision_parse(word, &dt)) return wrong(r, "", "is none of fp32, bf16, fp16");
        if (!json_is_object(one)) return wrong(r, "", "is not an object");
        ls_cluster_rates *to = &c->rates[ls_precision_index(dt)];
        LS_TRY(real(r, one, "matmul_flops", false, 0, &to->matmul));
        LS_TRY(real(r, one, "attention_flops", false, 0, &to->attention));
        LS_TRY(real(r, one, "peak_flops", false, 0, &to->peak));
    }
    r->at[0] = '\0';
    return LS_OK;
}

static ls_status read_units(const reader *r, const json_t *o, ls_cluster *c)
{
    ls_cluster_units u = {.threads = 1, .tp = 1};
    int B = 0, T = 0;
    LS_TRY(whole(r, o, "workers", true, MOST_PLACES, &u.workers));
    LS_TRY(whole(r, o, "threads", false, MOST_PLACES, &u.threads));
    LS_TRY(whole(r, o, "tp", false, MOST_PLACES, &u.tp));
    LS_TRY(whole(r, o, "n_embd", true, MOST_SIZE, &u.n_embd));
    LS_TRY(whole(r, o, "n_head", true, MOST_SIZE, &u.n_head));
    LS_TRY(whole(r, o, "vocab_size", true, MOST_SIZE, &u.vocab));
    u.dropout = json_is_true(json_object_get(o, "dropout"));
    LS_TRY(read_precision(r, o, &u.dtype));
    LS_TRY(whole(r, o, "micro_batch", true, MOST_SIZE, &B));
    LS_TRY(whole(r, o, "seq_length", true, MOST_SIZE, &T));
    u.B = B;
    u.T = T;
    for (int k = 0; k < LS_N_UNIT_TIME; k++) LS_TRY(seconds(r, o, ls_unit_time_word((ls_unit_time)k), &u.sec[k]));
    return ls_cluster_add_units(c, &u);
}

static ls_status read_passes(const reader *r, const json_t *o, ls_cluster *c)
{
    ls_cluster_passes p = {.apart = 1, .beside = 1};
    LS_TRY(whole(r, o, "workers", true, MOST_PLACES, &p.workers));
    LS_TRY(read_precision(r, o, &p.dtype));
    LS_TRY(real(r, o, "adamw", true, 0, &p.adamw));
    p.alone = p.adamw;
    LS_TRY(real(r, o, "adamw_alone", false, 0, &p.alone));
    LS_TRY(real(r, o, "sum_of_squares", true, 0, &p.sumsq));
    LS_TRY(real(r, o, "add", true, 0, &p.add));
    LS_TRY(share(r, o, "overlap", true, -2, &p.overlap));
    LS_TRY(real(r, o, "step", false, 0, &p.step));
    LS_TRY(share(r, o, "apart", false, 0, &p.apart));
    LS_TRY(share(r, o, "beside", false, 0, &p.beside));
    return ls_cluster_add_passes(c, &p);
}

static ls_status read_curve(const reader *r, const json_t *o, ls_cluster *c)
{
    ls_cluster_curve v = {.kind = LS_N_COLL};
    const char *kind = NULL;
    LS_TRY(words_of(r, o, "kind", true, &kind));
    for (int k = 0; k < LS_N_COLL; k++)
        if (!strcmp(kind, ls_coll_word((ls_coll)k))) v.kind = (ls_coll)k;
    if (v.kind == LS_N_COLL) return wrong(r, "kind", "is no collective (all_reduce, all_gather, send …)");
    LS_TRY(whole(r, o, "workers", true, MOST_PLACES, &v.workers));
    if (v.workers < 2) return wrong(r, "workers", "is 1: a collective has at least 2");
    const json_t *bytes = json_object_get(o, "bytes"), *sec = json_object_get(o, "seconds");
    v.n = (int)json_array_size(bytes);
    if (v.n < 1 || v.n > LS_CURVE_MAX || (int)json_array_size(sec) != v.n)
        return wrong(r, "bytes", "and seconds are two lists of 1 to 24 numbers, as many of the one as of the other");
    for (int k = 0; k < v.n; k++) {
        const json_t *b = json_array_get(bytes, (size_t)k), *t = json_array_get(sec, (size_t)k);
        v.bytes[k] = json_number_value(b);
        v.sec[k] = json_number_value(t);
        if (!json_is_number(b) || v.bytes[k] <= (k ? v.bytes[k - 1] : 0) || v.bytes[k] > MOST_REAL)
            return wrong(r, "bytes", "must be numbers above 0, and rise");
        if (!json_is_number(t) || v.sec[k] <= 0 || v.sec[k] > MOST_REAL)
            return wrong(r, "seconds", "must be numbers above 0");
    }
    return ls_cluster_add_curve(c, &v);
}

static ls_status read_list(reader *r, const json_t *root, const char *key, ls_cluster *c,
                           ls_status (*one)(const reader *, const json_t *, ls_cluster *))
{
    const json_t *list = json_object_get(root, key);
    if (!list) return LS_OK;
    if (!json_is_array(list)) return wrong(r, key, "is not a list");
    for (size_t i = 0; i < json_array_size(list); i++) {
        snprintf(r->at, sizeof r->at, "%s[%zu].", key, i);
        LS_TRY(one(r, json_array_get(list, i), c));
    }
    r->at[0] = '\0';
    return LS_OK;
}

static ls_status read_all(reader *r, const json_t *root, ls_cluster *c)
{
    const char *format = "", *name = ls_path_base(r->path), *source = "", *device = "cpu";
    double memory = 0;
    LS_TRY(words_of(r, root, "format", true, &format));
    if (strcmp(format, LS_CLUSTER_FORMAT))
        return ls_fail(LS_E_FORMAT, "%s: its format is '%.40s', and this program reads '" LS_CLUSTER_FORMAT "'",
                       r->path, format);
    LS_TRY(words_of(r, root, "name", false, &name));
    LS_TRY(words_of(r, root, "source", false, &source));
    LS_TRY(words_of(r, root, "device", false, &device));
    if (strcmp(device, "cpu") && strcmp(device, "gpu")) return wrong(r, "device", "is neither cpu nor gpu");
    c->cpu = !strcmp(device, "cpu");
    snprintf(c->name, sizeof c->name, "%s", name);
    snprintf(c->source, sizeof c->source, "%s", source);
    LS_TRY(whole(r, root, "hosts", false, MOST_PLACES, &c->hosts));
    LS_TRY(whole(r, root, "devices_per_host", true, MOST_PLACES, &c->devices));
    LS_TRY(between(r, root, "memory_bytes", true, 1, MOST_BYTES, &memory));
    c->memory = (int64_t)memory;
    LS_TRY(whole(r, root, "wire_bytes_per_element", false, 64, &c->wire_bytes));
    LS_TRY(whole(r, root, "update_bytes_per_parameter", false, MOST_PLACES, &c->update_bytes));
    LS_TRY(real(r, root, "matmul_flops", false, 0, &c->matmul));
    LS_TRY(real(r, root, "memory_bandwidth", false, 0, &c->bandwidth));
    LS_TRY(read_rates(r, root, c));
    LS_TRY(real(r, root, "unit_overhead", false, 0, &c->unit_overhead));
    LS_TRY(real(r, root, "product_ramp", false, 0, &c->ramp));
    LS_TRY(real(r, root, "step_overhead", false, 0, &c->step_overhead));
    LS_TRY(real(r, root, "power_watts", false, 0, &c->power));
    LS_TRY(share(r, root, "overlap", false, 0, &c->overlap));
    LS_TRY(read_link(r, root, "link_inside_host", &c->inside));
    LS_TRY(read_link(r, root, "link_between_hosts", &c->between));
    LS_TRY(read_list(r, root, "units", c, read_units));
    LS_TRY(read_list(r, root, "passes", c, read_passes));
    LS_TRY(read_list(r, root, "collectives", c, read_curve));
    bool any = false, rate = c->matmul > 0;
    for (int i = 0; i < c->n_units; i++) any |= c->units[i].tp == 1;
    for (int k = 0; k < LS_N_PRECISION; k++) rate |= c->rates[k].matmul > 0;
    if (!any && (!rate || c->bandwidth <= 0))
        return ls_fail(LS_E_FORMAT,
                       "%s: it has neither units nor matmul_flops and memory_bandwidth; add one of them, or measure "
                       "(plan --measure)",
                       r->path);
    if (c->n_units && !c->n_passes && c->bandwidth <= 0)
        return ls_fail(LS_E_FORMAT, "%s: it has units, but neither passes nor memory_bandwidth", r->path);
    return LS_OK;
}

ls_status ls_cluster_load(const char *path, ls_cluster *out)
{
    json_t *root = NULL;
    LS_TRY(ls_json_load(path, &root));
    reader r = {.path = path};
    ls_cluster c = {.hosts = 1, .wire_bytes = 4, .update_bytes = 28};
    ls_status st = json_is_object(root) ? read_all(&r, root, &c)
                                        : ls_fail(LS_E_FORMAT, "%s: a cluster file is one JSON object", path);
    json_decref(root);
    if (st == LS_OK) *out = c;
    else ls_cluster_fini(&c);
    return st;
}

ls_status ls_cluster_open(const char *name, ls_cluster *out)
{
    if (ls_cluster_preset(name, out)) return LS_OK;
    if (ls_fs_exists(name)) return ls_cluster_load(name, out);
    return ls_fail(LS_E_ARG, "--cluster %s: no such file, and no preset (%s); 'this' measures this machine", name,
                   ls_cluster_presets);
}
