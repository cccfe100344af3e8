/* eval_translate.c - `lockstep eval --task translate`: translates the pairs of a file and scores the result. */
#include "cli/eval_impl.h"
#include "core/fs.h"
#include "core/stop.h"

static ls_status print(const options *o, const ls_session_opts *how, const ls_session *s, const char *data,
                       const ls_translation_set *set)
{
    const double rate = set->seconds > 0 ? (double)set->n_token / set->seconds : 0;
    cli_json j;
    if (!o->json) {
        eval_print_session(s, how);
        cli_scores_print(&set->bleu, &set->chrf, (int64_t)set->n, 1);
        printf("tokens/s %.1f\n", rate);
        if (set->n_cut) printf("without an end %lld: longer than --max_length\n", (long long)set->n_cut);
        if (o->out) printf("translations %s\n", o->out);
        return LS_OK;
    }
    ls_jsonw *w = cli_json_begin(&j);
    ls_jsonw_members(w, LS_KV("checkpoint", s->path), LS_KV("data", data));
    cli_session_json(s, how, w);
    ls_jsonw_put_int(w, "beam", o->search.beam);
    cli_scores_json(&set->bleu, &set->chrf, (int64_t)set->n, 1, w);
    ls_jsonw_members(w, LS_KV("without_end", set->n_cut), LS_KV("generated_tokens", set->n_token),
                     LS_KV("seconds", set->seconds), LS_KV("tokens_per_sec", rate));
    return cli_json_end(&j);
}

ls_status eval_translate(const options *o)
{
    const ls_translate_opts how = cli_search_opts(&o->search, true);
    ls_session_opts open = {.checkpoint = o->checkpoint};
    ls_device_choice device;
    ls_session s = {0};
    ls_langs langs;
    ls_translation_set set = {0};
    char path[PATH_MAX];
    LS_TRY(cli_search_check(&o->search));
    LS_TRY(cli_test_pairs(o->data, path));
    LS_TRY(cli_choose_device(&o->on, NULL, &open, &device));
    cli_print_session(&device, &open);
    ls_stop_install();
    LS_TRY(ls_translate_open(&s, open, &how, &langs));
    ls_status st = ls_translation_set_read(&set, &(const char *){path}, 1, &langs, o->limit);
    if (st == LS_OK) st = ls_translate(&s, &how, &set);
    if (st == LS_OK && o->out) st = cli_write_translations(&set, &langs, o->out);
    if (st == LS_OK) st = print(o, &open, &s, path, &set);
    ls_translation_set_fini(&set);
    ls_session_close(&s);
    return st;
}
