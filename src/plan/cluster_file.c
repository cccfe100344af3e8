/* cluster_file.c - reads and writes cluster files; planner_rates.c computes predictions from them. */
#include "plan/cluster_file.h"

#include "core/fs.h"
#include "core/json.h"
#include "core/mem.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

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

/* Appends a copy of `one` to an array of n; returns its new place, or NULL if out of memory. */
static void *append(void *array, int *n, const void *one, size_t size)
{
    char *p = ls_realloc(array, (size_t)(*n + 1) * size);
    if (p) memcpy(p + (size_t)(*n)++ * size, one, size);
    return p;
}

ls_status ls_cluster_add_units(ls_cluster *c, const ls_cluster_units *u)
{
    ls_cluster_units *more = append(c->units, &c->n_units, u, sizeof *u);
    if (more) c->units = more;
    return more ? LS_OK : ls_nomem(sizeof *u, "the unit times of a cluster");
}

ls_status ls_cluster_add_passes(ls_cluster *c, const ls_cluster_passes *p)
{
    ls_cluster_passes *more = append(c->passes, &c->n_passes, p, sizeof *p);
    if (more) c->passes = more;
    return more ? LS_OK : ls_nomem(sizeof *p, "the memory passes of a cluster");
}

ls_status ls_cluster_add_curve(ls_cluster *c, const ls_cluster_curve *v)
{
    ls_cluster_curve *more = append(c->curve, &c->n_curve, v, sizeof *v);
    if (more) c->curve = more;
    return more ? LS_OK : ls_nomem(sizeof *v, "the collective times of a cluster");
}

/* ---- keys ---- */

/* The largest values that a file may have: larger ones are mistakes, and sums would overflow. */
#define MOST_REAL  1e30
#define MOST_BYTES 4e18
enum { MOST_PLACES = 65536, MOST_SIZE = 1 << 24 };

typedef enum field_kind {
    F_INT,
    F_INT64,
    F_BYTES,
    F_BOOL,
    F_PRECISION,
    F_KERNEL,
    F_REAL,
    F_FRACTION,
    F_SECONDS
} field_kind;

/* One key of an object, read and written by this table. */
typedef struct field {
    const char *key;
    field_kind kind;
    size_t at;   /* offset of the member           */
    bool need;   /* it is an error if it is missing */
    bool sparse; /* written only if above 0        */
    double lo, hi;
} field;

/* clang-format off */
#define AT(type, member)                offsetof(type, member)
#define WHOLE(key, at, need, most)      {key, F_INT, at, need, false, 1, most}
#define WHOLE64(key, at, need, most)    {key, F_INT64, at, need, false, 1, most}
#define REAL(key, at, need)             {key, F_REAL, at, need, false, 0, MOST_REAL}
#define SECONDS(key, at)                {key, F_SECONDS, at, true, false, 0, MOST_REAL},
#define SPARSE(key, at)                 {key, F_REAL, at, false, true, 0, MOST_REAL}
#define FRACTION(key, at, need, lowest) {key, F_FRACTION, at, need, false, lowest, MOST_REAL}

static const field unit_fields[] = {
    WHOLE("workers", AT(ls_cluster_units, workers), true, MOST_PLACES),
    WHOLE("threads", AT(ls_cluster_units, threads), false, MOST_PLACES),
    WHOLE("tp", AT(ls_cluster_units, tp), false, MOST_PLACES),
    WHOLE("n_embd", AT(ls_cluster_units, n_embd), true, MOST_SIZE),
    WHOLE("n_head", AT(ls_cluster_units, n_head), true, MOST_SIZE),
    WHOLE("vocab_size", AT(ls_cluster_units, vocab), true, MOST_SIZE),
    {.key = "dropout", .kind = F_BOOL, .at = AT(ls_cluster_units, dropout)},
    {.key = "precision", .kind = F_PRECISION, .at = AT(ls_cluster_units, dtype)},
    {.key = "kernel", .kind = F_KERNEL, .at = AT(ls_cluster_units, kernel)},
    WHOLE64("micro_batch", AT(ls_cluster_units, B), true, MOST_SIZE),
    WHOLE64("seq_length", AT(ls_cluster_units, T), true, MOST_SIZE),
#define X(name, word) SECONDS(word, AT(ls_cluster_units, sec) + (name) * sizeof(double))
    LS_UNIT_TIME_LIST(X)
#undef X
};
static const field pass_fields[] = {
    WHOLE("workers", AT(ls_cluster_passes, workers), true, MOST_PLACES),
    {.key = "precision", .kind = F_PRECISION, .at = AT(ls_cluster_passes, dtype)},
    REAL("adamw", AT(ls_cluster_passes, adamw), true),
    REAL("adamw_alone", AT(ls_cluster_passes, alone), false),
    SPARSE("adamw_offload", AT(ls_cluster_passes, offload)),
    SPARSE("adamw_on_host", AT(ls_cluster_passes, on_host)),
    REAL("sum_of_squares", AT(ls_cluster_passes, sumsq), true),
    REAL("add", AT(ls_cluster_passes, add), true),
    FRACTION("overlap", AT(ls_cluster_passes, overlap), true, -2),
    REAL("step", AT(ls_cluster_passes, step), false),
    FRACTION("apart", AT(ls_cluster_passes, apart), false, 0),
    FRACTION("beside", AT(ls_cluster_passes, beside), false, 0),
};
static const field link_fields[] = {
    REAL("latency", AT(ls_link, latency), true),
    REAL("bandwidth", AT(ls_link, bandwidth), true),
};
static const field rate_fields[] = {
    SPARSE("matmul_flops", AT(ls_cluster_rates, matmul)),
    SPARSE("attention_flops", AT(ls_cluster_rates, attention)),
    SPARSE("attention_ordered_flops", AT(ls_cluster_rates, ordered)),
    SPARSE("attention_dropout_flops", AT(ls_cluster_rates, dropout)),
    SPARSE("peak_flops", AT(ls_cluster_rates, peak)),
};
/* Of the file itself, before and after "rates". */
static const field head_fields[] = {
    WHOLE("hosts", AT(ls_cluster, hosts), false, MOST_PLACES),
    WHOLE("devices_per_host", AT(ls_cluster, devices), true, MOST_PLACES),
    {"memory_bytes", F_BYTES, AT(ls_cluster, memory), true, false, 1, MOST_BYTES},
    WHOLE("wire_bytes_per_element", AT(ls_cluster, wire_bytes), false, 64),
    WHOLE("update_bytes_per_parameter", AT(ls_cluster, update_bytes), false, MOST_PLACES),
    SPARSE("matmul_flops", AT(ls_cluster, matmul)),
    REAL("memory_bandwidth", AT(ls_cluster, bandwidth), false),
    SPARSE("host_memory_bandwidth", AT(ls_cluster, host_memory)),
    SPARSE("bus_bandwidth", AT(ls_cluster, bus)),
};
static const field tail_fields[] = {
    REAL("unit_overhead", AT(ls_cluster, unit_overhead), false), REAL("product_ramp", AT(ls_cluster, ramp), false),
    REAL("step_overhead", AT(ls_cluster, step_overhead), false), SPARSE("power_watts", AT(ls_cluster, power)),
    FRACTION("overlap", AT(ls_cluster, overlap), false, 0),
    {"cards_between_hosts", F_INT, AT(ls_cluster, cards), false, true, 1, MOST_PLACES},
};
/* clang-format on */
#define FIELDS(table) (table), sizeof(table) / sizeof(table)[0]

/* ---- writing ---- */

static void write_fields(ls_jsonw *w, const field *f, size_t n, const void *from)
{
    for (size_t i = 0; i < n; i++, f++) {
        const void *p = (const char *)from + f->at;
        switch (f->kind) {
        case F_INT:
            if (!f->sparse || *(const int *)p) ls_jsonw_put_int(w, f->key, *(const int *)p);
            break;
        case F_INT64:
        case F_BYTES: ls_jsonw_put_int(w, f->key, *(const int64_t *)p); break;
        case F_BOOL: ls_jsonw_put_bool(w, f->key, *(const bool *)p); break;
        case F_PRECISION: ls_jsonw_put_str(w, f->key, ls_precision_word(*(const ls_dtype *)p)); break;
        case F_KERNEL:
            if (*(const char *)p) ls_jsonw_put_str(w, f->key, p);
            break;
        default:
            if (!f->sparse || *(const double *)p > 0) ls_jsonw_put_real(w, f->key, *(const double *)p);
        }
    }
}

/* A list of n objects of `size` bytes. */
static void write_list(ls_jsonw *w, const char *key, const field *f, size_t n_field, const void *from, int n,
                       size_t size)
{
    ls_jsonw_put_open(w, key, '[');
    for (int i = 0; i < n; i++) {
        ls_jsonw_open(w, '{');
        write_fields(w, f, n_field, (const char *)from + (size_t)i * size);
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

static void write_numbers(ls_jsonw *w, const char *key, const double *x, int n)
{
    ls_jsonw_put_open(w, key, '[');
    for (int k = 0; k < n; k++) ls_jsonw_real(w, x[k]);
    ls_jsonw_close(w);
}

static void write_curves(ls_jsonw *w, const ls_cluster *c)
{
    ls_jsonw_put_open(w, "collectives", '[');
    for (int i = 0; i < c->n_curve; i++) {
        const ls_cluster_curve *v = &c->curve[i];
        ls_jsonw_open(w, '{');
        ls_jsonw_members(w, LS_KV("kind", ls_coll_word(v->kind)), LS_KV("workers", v->workers));
        write_numbers(w, "bytes", v->bytes, v->n);
        write_numbers(w, "seconds", v->sec, v->n);
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

static void write_object(ls_jsonw *w, const char *key, const field *f, size_t n, const void *from)
{
    ls_jsonw_put_open(w, key, '{');
    write_fields(w, f, n, from);
    ls_jsonw_close(w);
}

static void write_rates(ls_jsonw *w, const ls_cluster *c)
{
    ls_jsonw_put_open(w, "rates", '{');
    for (int k = 0; k < LS_N_PRECISION; k++) {
        const ls_cluster_rates *r = &c->rates[k];
        if (r->matmul > 0 || r->peak > 0) write_object(w, precision_word[k], FIELDS(rate_fields), r);
    }
    ls_jsonw_close(w);
}

void ls_cluster_text(const ls_cluster *c, ls_str *out)
{
    ls_jsonw w;
    ls_jsonw_init(&w, out, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_members(&w, LS_KV("format", LS_CLUSTER_FORMAT), LS_KV("name", c->name), LS_KV("source", c->source),
                     LS_KV("device", c->cpu ? "cpu" : "gpu"));
    write_fields(&w, FIELDS(head_fields), c);
    write_rates(&w, c);
    write_fields(&w, FIELDS(tail_fields), c);
    write_object(&w, "link_inside_host", FIELDS(link_fields), &c->inside);
    write_object(&w, "link_between_hosts", FIELDS(link_fields), &c->between);
    write_list(&w, "units", FIELDS(unit_fields), c->units, c->n_units, sizeof *c->units);
    write_list(&w, "passes", FIELDS(pass_fields), c->passes, c->n_passes, sizeof *c->passes);
    write_curves(&w, c);
    ls_jsonw_close(&w);
    ls_str_addc(out, '\n');
}

/* ---- reading ---- */

typedef struct reader {
    const char *path;
    char at[64]; /* "units[3]." */
} reader;

static ls_status wrong(const reader *r, const char *key, const char *words)
{
    return ls_fail(LS_E_FORMAT, "%s: %s%s %s", r->path, r->at, key, words);
}

static ls_status words_of(const reader *r, const json_t *o, const char *key, bool need, const char **to)
{
    const json_t *v = json_object_get(o, key);
    if (!v) return need ? wrong(r, key, "is missing") : LS_OK;
    if (!json_is_string(v)) return wrong(r, key, "is not a string");
    *to = json_string_value(v);
    return LS_OK;
}

/* fp32 if the key is missing. */
static ls_status read_precision(const reader *r, const json_t *o, ls_dtype *to)
{
    const char *word = "fp32";
    LS_TRY(words_of(r, o, "precision", false, &word));
    return ls_precision_parse(word, to) ? LS_OK : wrong(r, "precision", "must be fp32, bf16 or fp16");
}

/* Empty if the key is missing. */
static ls_status read_kernel(const reader *r, const json_t *o, char to[LS_KERNEL_NAME])
{
    const char *word = "";
    LS_TRY(words_of(r, o, "kernel", false, &word));
    if (strlen(word) >= LS_KERNEL_NAME) return wrong(r, "kernel", "is not the name of a matmul kernel: it is too long");
    snprintf(to, LS_KERNEL_NAME, "%s", word);
    return LS_OK;
}

/* A number into its member. A missing key is an error, or keeps the member as it is. */
static ls_status read_number(const reader *r, const json_t *o, const field *f, void *to)
{
    const json_t *v = json_object_get(o, f->key);
    const double x = json_number_value(v);
    const bool low = x < f->lo;
    char words[64];
    if (!v) return f->need ? wrong(r, f->key, "is missing") : LS_OK;
    if (!json_is_number(v)) return wrong(r, f->key, "is not a number");
    snprintf(words, sizeof words, "is %g; it must be at %s %g", x, low ? "least" : "most", low ? f->lo : f->hi);
    if (low || x > f->hi) return wrong(r, f->key, words);
    if (f->kind == F_FRACTION && x > 1) return wrong(r, f->key, "is above 1; it is a fraction");
    if (f->kind == F_SECONDS && x <= 0) return wrong(r, f->key, "is 0; it must be above 0");
    if ((f->kind == F_INT || f->kind == F_INT64) && x != (double)(int)x)
        return wrong(r, f->key, "is not a whole number");
    if (f->kind == F_INT) *(int *)to = (int)x;
    else if (f->kind == F_INT64 || f->kind == F_BYTES) *(int64_t *)to = (int64_t)x;
    else *(double *)to = x;
    return LS_OK;
}

static ls_status read_fields(const reader *r, const json_t *o, const field *f, size_t n, void *to)
{
    for (size_t i = 0; i < n; i++, f++) {
        void *p = (char *)to + f->at;
        if (f->kind == F_BOOL) *(bool *)p = json_is_true(json_object_get(o, f->key));
        else if (f->kind == F_PRECISION) LS_TRY(read_precision(r, o, p));
        else if (f->kind == F_KERNEL) LS_TRY(read_kernel(r, o, p));
        else LS_TRY(read_number(r, o, f, p));
    }
    return LS_OK;
}

static ls_status read_link(reader *r, const json_t *root, const char *key, ls_link *l)
{
    const json_t *o = json_object_get(root, key);
    if (!o) return LS_OK;
    if (!json_is_object(o)) return wrong(r, key, "is not an object");
    snprintf(r->at, sizeof r->at, "%s.", key);
    LS_TRY(read_fields(r, o, FIELDS(link_fields), l));
    r->at[0] = '\0';
    return LS_OK;
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
        if (!ls_precision_parse(word, &dt)) return wrong(r, "", "is not a precision; use fp32, bf16 or fp16");
        if (!json_is_object(one)) return wrong(r, "", "is not an object");
        LS_TRY(read_fields(r, one, FIELDS(rate_fields), &c->rates[ls_precision_index(dt)]));
    }
    r->at[0] = '\0';
    return LS_OK;
}

static ls_status read_units(const reader *r, const json_t *o, ls_cluster *c)
{
    ls_cluster_units u = {.threads = 1, .tp = 1};
    LS_TRY(read_fields(r, o, FIELDS(unit_fields), &u));
    return ls_cluster_add_units(c, &u);
}

static ls_status read_passes(const reader *r, const json_t *o, ls_cluster *c)
{
    ls_cluster_passes p = {.alone = -1, .apart = 1, .beside = 1};
    LS_TRY(read_fields(r, o, FIELDS(pass_fields), &p));
    if (p.alone < 0) p.alone = p.adamw;
    return ls_cluster_add_passes(c, &p);
}

static ls_status read_curve(const reader *r, const json_t *o, ls_cluster *c)
{
    ls_cluster_curve v = {.kind = LS_N_COLL};
    const char *kind = NULL;
    LS_TRY(words_of(r, o, "kind", true, &kind));
    for (int k = 0; k < LS_N_COLL; k++)
        if (!strcmp(kind, ls_coll_word((ls_coll)k))) v.kind = (ls_coll)k;
    if (v.kind == LS_N_COLL) return wrong(r, "kind", "is not a collective (all_reduce, all_gather, send, …)");
    LS_TRY(read_number(r, o, &(field)WHOLE("workers", 0, true, MOST_PLACES), &v.workers));
    if (v.workers < 2) return wrong(r, "workers", "is 1; a collective needs at least 2");
    const json_t *bytes = json_object_get(o, "bytes"), *sec = json_object_get(o, "seconds");
    v.n = (int)json_array_size(bytes);
    if (v.n < 1 || v.n > LS_CURVE_MAX || (int)json_array_size(sec) != v.n)
        return wrong(r, "bytes", "and seconds must be lists of equal length with 1 to 24 numbers");
    for (int k = 0; k < v.n; k++) {
        v.bytes[k] = json_number_value(json_array_get(bytes, (size_t)k)); /* 0 if it is not a number */
        v.sec[k] = json_number_value(json_array_get(sec, (size_t)k));
        if (v.bytes[k] <= (k ? v.bytes[k - 1] : 0) || v.bytes[k] > MOST_REAL)
            return wrong(r, "bytes", "must be increasing numbers above 0");
        if (v.sec[k] <= 0 || v.sec[k] > MOST_REAL) return wrong(r, "seconds", "must be numbers above 0");
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
    LS_TRY(words_of(r, root, "format", true, &format));
    if (strcmp(format, LS_CLUSTER_FORMAT))
        return ls_fail(LS_E_FORMAT, "%s: format is '%.40s'; this program reads '" LS_CLUSTER_FORMAT "'", r->path,
                       format);
    LS_TRY(words_of(r, root, "name", false, &name));
    LS_TRY(words_of(r, root, "source", false, &source));
    LS_TRY(words_of(r, root, "device", false, &device));
    if (strcmp(device, "cpu") && strcmp(device, "gpu")) return wrong(r, "device", "must be cpu or gpu");
    c->cpu = !strcmp(device, "cpu");
    snprintf(c->name, sizeof c->name, "%s", name);
    snprintf(c->source, sizeof c->source, "%s", source);
    LS_TRY(read_fields(r, root, FIELDS(head_fields), c));
    LS_TRY(read_rates(r, root, c));
    LS_TRY(read_fields(r, root, FIELDS(tail_fields), c));
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
                       "%s: add either units, or matmul_flops and memory_bandwidth, or measure (plan --measure)",
                       r->path);
    if (c->n_units && !c->n_passes && c->bandwidth <= 0)
        return ls_fail(LS_E_FORMAT, "%s: passes or memory_bandwidth is missing; one of them is needed with units",
                       r->path);
    return LS_OK;
}

ls_status ls_cluster_load(const char *path, ls_cluster *out)
{
    json_t *root = NULL;
    LS_TRY(ls_json_load(path, &root));
    reader r = {.path = path};
    ls_cluster c = {.hosts = 1, .wire_bytes = 4, .update_bytes = 28};
    ls_status st = json_is_object(root)
                       ? read_all(&r, root, &c)
                       : ls_fail(LS_E_FORMAT, "%s: not a cluster file: the file must hold one JSON object", path);
    json_decref(root);
    if (st == LS_OK) *out = c;
    else ls_cluster_fini(&c);
    return st;
}

static ls_status open_named(const char *name, ls_cluster *out)
{
    if (ls_cluster_preset(name, out)) return LS_OK;
    if (ls_fs_exists(name)) return ls_cluster_load(name, out);
    return ls_fail(
        LS_E_ARG,
        "--cluster %s: neither a file nor a preset (" LS_CLUSTER_PRESETS
        "); 'this' measures this machine; a file written by hand needs format, device (gpu), devices_per_host, "
        "memory_bytes, matmul_flops, memory_bandwidth and, for several workers, link_inside_host (docs/PLAN.md, "
        "\"Cluster files\", has an example)",
        name);
}

ls_status ls_cluster_open(const char *name, ls_cluster *out)
{
    const char *colon = strrchr(name, ':');
    char kind[600];
    int64_t count;
    if (!colon || ls_fs_exists(name) || (size_t)(colon - name) >= sizeof kind) return open_named(name, out);
    if (!ls_parse_i64(colon + 1, &count) || count < 1 || count > LS_CLUSTER_MOST)
        return ls_fail(
            LS_E_ARG,
            "--cluster %s: the number of devices after ':' must be 1 to %d, of all hosts together (2 hosts of 4: NAME:8)",
            name, LS_CLUSTER_MOST);
    snprintf(kind, sizeof kind, "%.*s", (int)(colon - name), name);
    LS_TRY(open_named(kind, out));
    out->count = (int)count;
    out->hosts = ((int)count + out->devices - 1) / out->devices;
    return LS_OK;
}
