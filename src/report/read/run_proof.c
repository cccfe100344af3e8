/* run_proof.c - evidence next to a run: NCCL's logs, `nvidia-smi topo -m`, `ibstat`, NCCL's topology. All of it is untrusted text. */
#include "core/fs.h"
#include "core/mem.h"
#include "core/nccl_log.h"
#include "core/str.h"
#include "report/compat/profile_summary.h"
#include "report/read/run_impl.h"

#include <stdio.h>
#include <string.h>

enum { MAX_TEXT = 16 << 10, MAX_LOG = 4096, MAX_LOG_BYTES = 64 << 20, MAX_GPU = 32 };

/* ---- logs of NCCL ---- */

static bool is_log(const char *name)
{
    return !strncmp(name, "nccl_rank", 9) && ls_ends_in(name, ".log");
}

bool run_has_logs(const char *dir)
{
    char **names = NULL;
    size_t n = 0;
    bool any = false;
    if (ls_fs_list(dir, &names, &n) != LS_OK) ls_err_clear();
    for (size_t i = 0; i < n; i++) any = any || is_log(names[i]);
    ls_fs_list_free(names, n);
    return any;
}

ls_status run_sum_nsys(const char *dir, ls_notes *notes, ls_text *out)
{
    ls_str s = {0};
    size_t n = 0;
    ls_status st = ls_fs_is_dir(ls_path_of(dir, "profiles").text) ? ls_nsys_summary_text(dir, &s, &n) : LS_OK;
    if (st == LS_OK && s.failed) st = ls_nomem(s.cap, "a profile summary");
    if (st == LS_OK && n) *out = (ls_text){s.data, s.len};
    else ls_str_fini(&s);
    return ls_notes_failure(notes, st);
}

static ls_status add_logs(ls_nccl_log *l, const char *dir)
{
    char **names = NULL;
    size_t n = 0;
    ls_status st = ls_fs_is_dir(dir) ? ls_fs_list(dir, &names, &n) : LS_OK;
    for (size_t i = 0; i < n && i < MAX_LOG && st == LS_OK; i++) {
        const ls_path path = ls_path_of(dir, names[i]);
        char *text = NULL;
        size_t len = 0;
        int64_t size = 0;
        if (is_log(names[i]) && ls_fs_size(path.text, &size) == LS_OK && size <= MAX_LOG_BYTES)
            st = ls_fs_read(path.text, &text, &len);
        if (text) ls_nccl_log_add(l, text, len);
        ls_free(text);
    }
    ls_fs_list_free(names, n);
    if (st == LS_E_NOMEM) return st;
    ls_err_clear(); /* a log that cannot be read states nothing */
    return LS_OK;
}

ls_status run_sum_logs(const char *dir, ls_text *out)
{
    ls_nccl_log l;
    ls_str s = {0};
    ls_jsonw w;
    ls_nccl_log_init(&l);
    LS_TRY(add_logs(&l, ls_path_of(dir, "nccl").text));
    LS_TRY(add_logs(&l, dir));
    if (!l.n_file) return LS_OK;
    ls_jsonw_init(&w, &s, 0);
    ls_jsonw_open(&w, '{');
    ls_nccl_log_write(&l, &w);
    ls_jsonw_close(&w);
    if (s.failed) {
        ls_str_fini(&s);
        return ls_nomem(1024, "a summary");
    }
    *out = (ls_text){s.data, s.len};
    return LS_OK;
}

/* ---- texts ---- */

/* Without colours of a terminal and what is no plain character; at most MAX_TEXT bytes. */
static ls_status plain(ls_text t, char **out)
{
    ls_str s = {0};
    for (size_t i = 0; i < t.n && s.len < MAX_TEXT; i++) {
        const unsigned char c = (unsigned char)t.data[i];
        if (c == 27 && i + 1 < t.n && t.data[i + 1] == '[') {
            for (i += 2; i < t.n && (t.data[i] < '@' || t.data[i] > '~'); i++) {}
            continue;
        }
        if (c == '\r') continue;
        ls_str_addc(&s, c == '\n' || c == '\t' || (c >= ' ' && c < 127) ? (char)c : '?');
    }
    if (s.failed) {
        ls_str_fini(&s);
        return ls_nomem(t.n, "evidence of a run");
    }
    *out = s.data;
    return LS_OK;
}

/* The next line from *at; false: none is left. */
static bool next_line(const char **at, char *line, size_t room)
{
    const char *p = *at, *end = strchr(p, '\n');
    const size_t n = end ? (size_t)(end - p) : strlen(p);
    if (!*p) return false;
    snprintf(line, room, "%.*s", (int)(n < room ? n : room - 1), p);
    *at = p + n + (end != NULL);
    return true;
}

static void append(char *to, size_t room, const char *text)
{
    const size_t n = strlen(to);
    if (n + strlen(text) + 16 < room) snprintf(to + n, room - n, "%s%s", n ? ", " : "", text);
    else if (!ls_ends_in(to, " and more")) snprintf(to + n, room - n, " and more"); /* never half an entry */
}

/* ---- topo.txt: links between GPUs, each pair once ---- */

/* "GPU1  NV18  X  SYS …": the cells of GPUs before its own X. */
static void read_gpu_row(const char *line, json_t *count)
{
    int gpu = -1, column = -1;
    for (const char *p = line; *(p += strspn(p, " \t")); p += strcspn(p, " \t"), column++) {
        char word[12];
        snprintf(word, sizeof word, "%.*s", (int)strcspn(p, " \t"), p);
        if (column < 0) {
            if (sscanf(word, "GPU%d", &gpu) != 1 || gpu < 0 || gpu >= MAX_GPU) return;
        } else if (!strcmp(word, "X") || column >= gpu) return;
        else json_object_set_new(count, word, json_integer(json_integer_value(json_object_get(count, word)) + 1));
    }
}

static void read_topo(ls_run_proof *p)
{
    char line[1024], text[40];
    const char *at = p->topo, *name;
    json_t *count = json_object(), *n;
    while (at && next_line(&at, line, sizeof line))
        if (!strncmp(line, "GPU", 3) && !strstr(line, "CPU Affinity")) read_gpu_row(line, count);
    json_object_foreach(count, name, n)
    {
        snprintf(text, sizeof text, "%s x %d", name, (int)json_integer_value(n));
        append(p->links, sizeof p->links, text);
    }
    json_decref(count);
}

/* ---- ibstat.txt ---- */

typedef struct port {
    char card[32], state[24], link[24];
    int number;
    double rate;
} port;

static void end_port(ls_run_proof *p, port *q)
{
    char text[160], rate[32] = "";
    if (q->number < 0) return;
    if (q->rate >= 0) snprintf(rate, sizeof rate, ", %g Gb/s", q->rate);
    snprintf(text, sizeof text, "%s port %d: %s%s%s%s", q->card, q->number, q->state[0] ? q->state : "state not stated",
             rate, q->link[0] ? ", " : "", q->link);
    append(p->ports, sizeof p->ports, text);
    q->number = -1;
}

static void read_ibstat(ls_run_proof *p)
{
    char line[512];
    const char *at = p->ibstat;
    port q = {.number = -1, .rate = -1};
    while (at && next_line(&at, line, sizeof line)) {
        const char *say = line + strspn(line, " \t");
        int number;
        if (!strncmp(say, "CA '", 4)) {
            end_port(p, &q);
            snprintf(q.card, sizeof q.card, "%.*s", (int)strcspn(say + 4, "'"), say + 4);
        } else if (sscanf(say, "Port %d:", &number) == 1) {
            end_port(p, &q);
            q.number = number;
            q.rate = -1;
            q.state[0] = q.link[0] = '\0';
        } else if (!strncmp(say, "State: ", 7)) snprintf(q.state, sizeof q.state, "%.23s", say + 7);
        else if (!strncmp(say, "Link layer: ", 12)) snprintf(q.link, sizeof q.link, "%.23s", say + 12);
        else (void)sscanf(say, "Rate: %lf", &q.rate);
    }
    end_port(p, &q);
}

/* ---- nccl_topo.xml: network cards and their speeds ---- */

/* The value of an attribute inside one tag. */
static bool attribute(const char *tag, size_t n, const char *name, char *value, size_t room)
{
    char key[24];
    const size_t k = (size_t)snprintf(key, sizeof key, " %s=\"", name);
    for (size_t i = 0; i + k < n; i++) {
        if (memcmp(tag + i, key, k)) continue;
        const char *end = memchr(tag + i + k, '"', n - i - k);
        if (!end) return false;
        const size_t len = (size_t)(end - (tag + i + k));
        snprintf(value, room, "%.*s", (int)(len < room ? len : room - 1), tag + i + k);
        return true;
    }
    return false;
}

static void read_topology(ls_text t, ls_run_proof *p)
{
    const char *text = t.data;
    const size_t n = t.n;
    for (size_t i = 0; i + 5 < n; i++) {
        char name[32], speed[24], line[80];
        if (memcmp(text + i, "<net ", 5)) continue;
        const char *end = memchr(text + i, '>', n - i);
        if (!end) return;
        const size_t len = (size_t)(end - (text + i));
        if (attribute(text + i, len, "name", name, sizeof name) &&
            attribute(text + i, len, "speed", speed, sizeof speed)) {
            snprintf(line, sizeof line, "%s %s Mb/s", name, speed);
            append(p->nets, sizeof p->nets, line);
        }
        i += len;
    }
}

ls_status run_read_proof(const ls_run_texts *t, ls_notes *notes, ls_run *r)
{
    ls_run_proof *p = &r->proof;
    const json_t *ours = report_object(&(report_doc){r->metrics, "", NULL}, "lockstep.nccl");
    const bool known = report_object(&(report_doc){r->metrics, "", NULL}, "lockstep") != NULL;
    if (p->nccl && known && !ls_run_over_nccl(r)) { /* of an earlier run, or of an attempt to use NCCL */
        const char *backend = ls_run_backend(r);
        ls_notes_add(notes,
                     "%s: the run did not communicate over NCCL (%s), so the NCCL logs and summary there are left out",
                     r->dir, backend ? backend : "no communicator");
        json_decref(p->nccl);
        p->nccl = NULL;
    }
    p->of_logs = p->nccl && t->nccl_of_logs;
    if (!p->nccl && ours) p->nccl = json_incref((json_t *)(uintptr_t)ours);
    if (t->file[LS_RUN_TOPO].data) LS_TRY(plain(t->file[LS_RUN_TOPO], &p->topo));
    if (t->file[LS_RUN_IBSTAT].data) LS_TRY(plain(t->file[LS_RUN_IBSTAT], &p->ibstat));
    read_topo(p);
    read_ibstat(p);
    if (t->file[LS_RUN_TOPOLOGY].data) read_topology(t->file[LS_RUN_TOPOLOGY], p);
    return LS_OK;
}

void run_proof_fini(ls_run_proof *p)
{
    json_decref(p->nccl);
    ls_free(p->topo);
    ls_free(p->ibstat);
    *p = (ls_run_proof){0};
}
