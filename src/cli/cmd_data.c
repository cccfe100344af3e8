/* cmd_data.c - `lockstep data`: lists data sets, and downloads or writes them. */
#include "cli/commands.h"
#include "core/fs.h"
#include "core/progress.h"
#include "core/stop.h"
#include "data/fetch.h"

typedef struct options {
    const char *out, *url, *sha256;
    int64_t retries;
    bool json, quiet;
} options;

/* ---- list ---- */

static const ls_opt list_table[] = {CLI_SWITCH("json", json, "print the list as JSON")};
static const cli_page list_page = {
    list_table, CLI_COUNT(list_table), "data list [OPTIONS]",
    "List the text that comes with the program and the public data sets of the reference projects."};

static int64_t bytes_of(const ls_dataset *d)
{
    int64_t sum = 0;
    for (int i = 0; i < d->n_file; i++) sum += d->file[i].nbytes;
    return sum;
}

static ls_status list_json(void)
{
    cli_json j;
    ls_jsonw *w = cli_json_begin(&j);
    ls_jsonw_put_open(w, "sets", '[');
    for (size_t i = 0; i < ls_n_dataset; i++) {
        const ls_dataset *d = &ls_datasets[i];
        ls_jsonw_open(w, '{');
        ls_jsonw_members(w, LS_KV("name", d->name), LS_KV("what", d->what), LS_KV("by_hand", d->by_hand));
        ls_jsonw_put_open(w, "files", '[');
        for (int k = 0; k < d->n_file; k++) {
            const ls_dataset_file *f = &d->file[k];
            ls_jsonw_open(w, '{');
            ls_jsonw_members(w, LS_KV("name", f->name), LS_KV("url", f->url), LS_KV("bytes", f->nbytes),
                             LS_KV("sha256", f->sha256));
            ls_jsonw_close(w);
        }
        ls_jsonw_close(w);
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
    return cli_json_end(&j);
}

static ls_status data_list(int argc, char **argv)
{
    options o = {0};
    LS_TRY(cli_parse(&list_page, &o, argc, argv, NULL, NULL));
    if (o.json) return list_json();
    for (size_t i = 0; i < ls_n_dataset; i++) {
        const ls_dataset *d = &ls_datasets[i];
        char size[32] = "by hand";
        if (d->n_file) ls_human_bytes(size, (double)bytes_of(d));
        printf("%-16s %10s  %s\n", d->name, size, d->what);
    }
    printf("\n`lockstep data fetch NAME` writes or downloads a set, or prints where to get it.\n");
    return LS_OK;
}

/* ---- fetch ---- */

static const ls_opt fetch_table[] = {
    CLI_STR("out", out, "DIR", NULL, "folder for the files [dataset; of shakespeare: the current folder]"),
    CLI_STR("url", url, "URL", NULL,
            "download the files from this folder on a server instead (a mirror); also file://"),
    CLI_STR("sha256", sha256, "HEX", NULL, "expected SHA-256 of a set with one file [the known one, if any]"),
    CLI_INT_IN(0, 1000, "retries", retries, "N", "5", "give up after N more attempts in a row that bring no data"),
    CLI_SWITCH("json", json, "print the result as one JSON object"),
    CLI_SWITCH("quiet", quiet, "print no progress on stderr"),
};
static const cli_page fetch_page = {
    fetch_table, CLI_COUNT(fetch_table), "data fetch NAME [OPTIONS]",
    "Download a public data set (`lockstep data list`), and check sizes and checksums. `data fetch shakespeare` needs no "
    "network: it writes a small English text that comes with the program. A broken or stopped download continues where "
    "it ended. Files that exist are only checked. Without a network, put the files into the folder by hand and run the "
    "command to check them."};

static void show(void *ctx, int64_t done, int64_t total, double rate)
{
    const char *name = ctx;
    char a[32], b[32];
    ls_progress_line l = {0};
    if (!ls_progress_due(0)) return;
    ls_human_bytes(a, (double)done);
    if (total > 0)
        ls_progress_add(&l, 0, "%s: %s of %s (%.0f%%)", name, a, ls_human_bytes(b, (double)total),
                        100 * (double)done / (double)total);
    else ls_progress_add(&l, 0, "%s: %s", name, a);
    if (total > 0 && rate > 0) ls_progress_add(&l, 1, "eta %s", ls_human_time(b, (double)(total - done) / rate));
    ls_progress_add(&l, 2, "%s/s", ls_human_bytes(a, rate));
    ls_progress_show(&l);
}

/* What a user without a network needs. */
static ls_status by_other_means(ls_status st, const ls_dataset_file *f, const char *path)
{
    ls_err_kept why;
    ls_err_keep(&why);
    if ((st != LS_E_IO && st != LS_E_FORMAT) || ls_fs_exists(path) || !f->url) return st;
    return ls_fail(
        st, "%s; or get %s on another machine, put it at %s (%lld bytes%s%s) and run this command again to check it",
        why.words, f->url, path, (long long)f->nbytes, f->sha256 ? ", SHA-256 " : "", f->sha256 ? f->sha256 : "");
}

static ls_status fetch_file(const options *o, const ls_dataset_file *f, ls_fetch_result *r)
{
    char path[PATH_MAX], url[PATH_MAX];
    LS_TRY(ls_path_in(path, o->out, "%s", f->name));
    if (o->url) LS_TRY(ls_path_in(url, o->url, "%s", f->name));
    ls_progress_open();
    const ls_fetch_opts how = {.url = o->url ? url : f->url,
                               .path = !strncmp(path, "./", 2) ? path + 2 : path,
                               .packed = o->url ? NULL : f->packed,
                               .npacked = f->packed ? *f->npacked : 0,
                               .sha256 = o->sha256 ? o->sha256 : f->sha256,
                               .nbytes = o->sha256 ? -1 : f->nbytes,
                               .retries = (int)o->retries,
                               .progress = o->quiet ? NULL : show,
                               .progress_ctx = (void *)f->name};
    const ls_status st = ls_fetch(&how, r);
    ls_progress_end(false);
    if (st != LS_OK) return by_other_means(st, f, path);
    if (o->json) return LS_OK;
    char size[32];
    printf("%-22s %10s  %s  %s%s\n", f->name, ls_human_bytes(size, (double)r->nbytes),
           r->had_it    ? "existed   "
           : how.packed ? "written   "
                        : "downloaded",
           how.sha256 ? "SHA-256 is right" : "size is right; no published checksum, SHA-256 ",
           how.sha256 ? "" : r->sha256);
    return LS_OK;
}

static void put_file(ls_jsonw *w, const ls_dataset_file *f, const ls_fetch_result *r)
{
    ls_jsonw_open(w, '{');
    ls_jsonw_members(w, LS_KV("name", f->name), LS_KV("bytes", r->nbytes), LS_KV("sha256", (const char *)r->sha256),
                     LS_KV("fetched_bytes", r->fetched), LS_KV("broken_connections", r->n_broken),
                     LS_KV("existed", r->had_it));
    ls_jsonw_close(w);
}

/* What to do next, with the folder for DIR. */
static void add_next(ls_str *s, const ls_dataset *d, const char *out)
{
    for (const char *p = d->next, *dir; *p; p = dir + 3) {
        dir = strstr(p, "DIR");
        ls_str_addn(s, p, dir ? (size_t)(dir - p) : strlen(p));
        if (!dir) break;
        if (!strcmp(out, ".") && dir[3] == '/') dir++; /* ./FILE: FILE */
        else ls_str_add(s, out);
    }
}

static ls_status refer(const ls_dataset *d, const char *out)
{
    ls_str next = {0};
    add_next(&next, d, out);
    const ls_status st = ls_fail(LS_E_UNSUPPORTED, "%s cannot be downloaded by this command: %s; put the files at %s",
                                 d->name, d->by_hand, next.data ? next.data : out);
    ls_str_fini(&next);
    return st;
}

static ls_status fetch_all(const options *o, const ls_dataset *d)
{
    ls_fetch_result r[LS_DATASET_FILES] = {0};
    ls_stop_install();
    for (int i = 0; i < d->n_file; i++) LS_TRY(fetch_file(o, &d->file[i], &r[i]));
    if (!o->json) {
        ls_str next = {0};
        ls_str_add(&next, "next: ");
        add_next(&next, d, o->out);
        ls_str_addc(&next, '\n');
        return cli_print(&next);
    }
    cli_json j;
    ls_jsonw *w = cli_json_begin(&j);
    ls_jsonw_members(w, LS_KV("name", d->name), LS_KV("out", o->out));
    ls_jsonw_put_open(w, "files", '[');
    for (int i = 0; i < d->n_file; i++) put_file(w, &d->file[i], &r[i]);
    ls_jsonw_close(w);
    return cli_json_end(&j);
}

static ls_status data_fetch(int argc, char **argv)
{
    options o = {0};
    ls_opt_list words = {0};
    const char *names[32];
    LS_TRY(cli_parse(&fetch_page, &o, argc, argv, &words, NULL));
    if (words.n != 1)
        return ls_fail(LS_E_ARG, "data fetch needs the name of one data set; `lockstep data list` prints them");
    for (size_t i = 0; i < ls_n_dataset; i++) names[i] = ls_datasets[i].name;
    for (size_t i = 0; i < ls_n_dataset; i++) {
        const ls_dataset *d = &ls_datasets[i];
        if (strcmp(d->name, words.word[0]) != 0) continue;
        if (d->by_hand) return refer(d, o.out ? o.out : "dataset");
        if (o.sha256 && (d->n_file != 1 || strlen(o.sha256) != 64 || strspn(o.sha256, "0123456789abcdef") != 64))
            return ls_fail(LS_E_ARG,
                           "--sha256 needs 64 hexadecimal digits in lower case, and a set with one file; %s has %d",
                           d->name, d->n_file);
        if (!o.out) o.out = d->file[0].packed ? "." : "dataset";
        return fetch_all(&o, d);
    }
    const char *near = ls_nearest_word(words.word[0], names, ls_n_dataset);
    return ls_fail(LS_E_ARG, "unknown data set '%s'%s%s%s; `lockstep data list` prints the names", words.word[0],
                   near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

static const cli_command parts[] = {{"list", "list data sets", data_list},
                                    {"fetch", "write or download a data set and check it", data_fetch}};

ls_status cmd_data(int argc, char **argv)
{
    static const cli_group group = {.usage = "data NAME [OPTIONS]",
                                    .what = "data command",
                                    .text = "Texts to train on. Every command has its own --help.",
                                    .table = parts,
                                    .n = CLI_COUNT(parts)};
    return cli_run_group(&group, argc, argv);
}
