/* cmd_train.c - `lockstep train`: options, configuration, run. */
#include "cli/commands.h"
#include "core/mem.h"
#include "core/stop.h"
#include "data/tokenizer.h"
#include "train/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void to_stdout(void *ctx, const char *text)
{
    (void)ctx;
    fputs(text, stdout);
    fflush(stdout); /* users follow train.log */
}

static void to_stderr(void *ctx, const char *text)
{
    (void)ctx;
    fputs(text, stderr);
}

/* One line, replaced in place on a terminal. */
static void progress(void *ctx, const char *text, bool last)
{
    const bool *tty = ctx;
    if (*tty) fprintf(stderr, "\r\033[K%s%s", text, last ? "\n" : "");
    else fprintf(stderr, "%s\n", text);
}

/* What the tokenizer beside the data says about the vocabulary. */
static ls_status learn_facts(const ls_train_paths *paths, ls_train_facts *f)
{
    if (!paths->tokenizer) return LS_OK;
    ls_tokenizer *tok = NULL;
    LS_TRY(ls_tokenizer_load(paths->tokenizer, &tok));
    f->data_vocab_size = ls_tokenizer_n_vocab(tok);
    f->data_eos_id = ls_tokenizer_eot(tok);
    ls_tokenizer_destroy(&tok);
    return LS_OK;
}

static void say_notes(const ls_train_options *o, const ls_train_config *c)
{
    ls_str s = {0};
    ls_train_options_warnings(o, &s);
    for (int i = 0; i < c->n_note; i++) ls_str_addf(&s, "%s\n", c->note[i]);
    if (s.data) fputs(s.data, stderr);
    ls_str_fini(&s);
}

static void print_config(const ls_train_config *c)
{
    ls_str s = {0};
    if (c->json) ls_train_config_json(c, &s);
    else ls_train_config_table(c, &s);
    if (s.data) puts(s.data);
    ls_str_fini(&s);
}

static void startup_line(void)
{
    const char *devices = getenv("CUDA_VISIBLE_DEVICES");
    printf("Startup: pid=%d rank=0 local_rank=0 world_size=1 CUDA_VISIBLE_DEVICES=%s torch.cuda.current_device=none\n",
           (int)getpid(), devices ? devices : "");
    fflush(stdout);
}

static ls_status train(ls_train_config *c, const ls_run_identity *id)
{
    bool tty = isatty(STDERR_FILENO);
    const ls_train_io io = {.ctx = &tty, .line = to_stdout, .progress = progress, .note = to_stderr, .frequent = tty};
    ls_trainer *t = NULL;
    ls_stop_install();
    startup_line();
    LS_TRY(ls_trainer_create(&t, c, &io));
    ls_status st = ls_trainer_run(t, id);
    ls_trainer_destroy(&t);
    return st;
}

static ls_status configure(const ls_train_options *o, const ls_ds_config *ds, ls_train_config *c)
{
    ls_train_paths paths = {0};
    ls_train_facts facts = {.data_eos_id = -1};
    LS_TRY(ls_train_find_paths(o, &paths));
    ls_status st = learn_facts(&paths, &facts);
    if (st == LS_OK) st = ls_train_resolve(o, ds, &paths, &facts, c);
    ls_train_paths_fini(&paths);
    return st;
}

ls_status cmd_train(int argc, char **argv)
{
    ls_train_options o = {0};
    ls_ds_config ds = {0};
    ls_train_config c = {0};
    ls_run_identity id = {0};
    ls_status st = LS_OK;
    LS_TRY(ls_run_identity_capture(&id, argc + 2, argv - 2)); /* before parsing: it moves words */
    LS_TRY_GOTO(st, done, ls_train_options_parse(argc, argv, &o));
    if (o.help) {
        ls_str s = {0};
        ls_train_options_help(&s);
        if (s.data) fputs(s.data, stdout);
        ls_str_fini(&s);
        goto done;
    }
    if (o.deepspeed_config) LS_TRY_GOTO(st, done, ls_ds_config_load(o.deepspeed_config, &ds));
    LS_TRY_GOTO(st, done, configure(&o, o.deepspeed_config ? &ds : NULL, &c));
    say_notes(&o, &c);
    if (c.print_config) print_config(&c);
    else st = train(&c, &id);
done:
    if (!o.help && !c.print_config) {
        ls_str s = {0};
        ls_exit_marker(0, &s);
        if (s.data) fputs(s.data, stdout);
        ls_str_fini(&s);
    }
    ls_train_config_fini(&c);
    ls_ds_config_fini(&ds);
    ls_run_identity_fini(&id);
    return st;
}
