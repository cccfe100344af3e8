/* checkpoint_save.c - writes one checkpoint folder in three steps.
 *
 *   begin    checks jobs and counts bytes; rank 0 creates the temporary folder and both weight files and reserves their space
 *   write    every worker writes its bytes of the weight files; rank 0 also the small files and the headers
 *   finish   collects the hashes of all blocks; rank 0 writes checksums.json, renames, prunes
 *
 * After each step the workers agree on the status; a failure of one removes the folder. A single worker (comm NULL) needs no agreement. */
#include "ckpt/checkpoint_impl.h"

#include "core/log.h"
#include "core/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- small files ---- */

static ls_status put_at(const char *path, const void *data, size_t n, ls_sum *sum)
{
    ls_sum_out *o = NULL;
    ls_status st;
    LS_TRY(ls_sum_open(&o, path, (int64_t)n));
    LS_TRY_GOTO(st, done, ls_sum_add(o, data, n));
    LS_TRY_GOTO(st, done, ls_sum_commit(&o, sum));
done:
    ls_sum_abort(&o);
    return st;
}

/* Writes dir/name from memory, hashes and syncs it, and adds it to sums. */
static ls_status put(ckpt_sums *sums, const char *dir, const char *name, const void *data, size_t n)
{
    char *path = ls_path_join(dir, name);
    if (!path) return ls_nomem(strlen(dir), "a path");
    ls_status st = put_at(path, data, n, ckpt_sums_next(sums, name));
    ls_free(path);
    return st;
}

ls_status ckpt_put_file(ckpt_sums *sums, const char *dir, const char *name, const char *src)
{
    ls_fs_map map;
    LS_TRY(ls_fs_map_open(&map, src));
    ls_status st = put(sums, dir, name, map.data, map.n);
    ls_fs_map_close(&map);
    return st;
}

static ls_status put_text(ckpt_sums *sums, const char *dir, const char *name, ls_str *text)
{
    ls_status st = text->failed ? ls_nomem(text->cap, name) : put(sums, dir, name, text->data, text->len);
    ls_str_fini(text);
    return st;
}

static ls_status put_small(const ls_ckpt_job *job, const json_t *state, const char *dir, ckpt_sums *sums)
{
    const ls_model_config *c = &job->model->cfg;
    ls_str s = {0};
    ls_jsonw w;
    ls_model_config_write(c, &s);
    LS_TRY(put_text(sums, dir, CKPT_CONFIG, &s));

    ls_jsonw_init(&w, &s, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_bool(&w, "_from_model_config", 1);
    if (c->eos_id >= 0) {
        ls_jsonw_put_int(&w, "bos_token_id", c->eos_id);
        ls_jsonw_put_int(&w, "eos_token_id", c->eos_id);
    }
    ls_jsonw_close(&w);
    LS_TRY(put_text(sums, dir, CKPT_GEN, &s));
    if (job->tokenizer_path) LS_TRY(ckpt_put_file(sums, dir, CKPT_TOKENIZER, job->tokenizer_path));

    ls_jsonw_init(&w, &s, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_str(&w, "format", CKPT_FORMAT);
    ls_jsonw_put_int(&w, "version", LS_CKPT_VERSION);
    ls_jsonw_put_int(&w, "step", job->step);
    ls_jsonw_put_str(&w, "dtype", ls_dtype_word(job->model->compute->ops->wide));
    ls_jsonw_put_bool(&w, "optimizer", job->optimizer);
    ls_jsonw_key(&w, "trainer");
    ls_jsonw_value(&w, state);
    ls_jsonw_close(&w);
    LS_TRY(put_text(sums, dir, CKPT_STATE, &s));
    return LS_OK;
}

int ckpt_depth(const json_t *v, int limit)
{
    int deepest = 0, d;
    const char *key;
    json_t *item;
    size_t i;
    if (limit <= 0) return 1;
    if (json_is_array(v)) {
        json_array_foreach(v, i, item) if ((d = ckpt_depth(item, limit - 1)) > deepest) deepest = d;
    } else if (json_is_object(v)) {
        json_object_foreach((json_t *)(uintptr_t)v, key, item)
        {
            if ((d = ckpt_depth(item, limit - 1)) > deepest) deepest = d;
        }
    }
    return deepest + 1;
}

/* ---- begin ---- */

static int n_file_of(const ckpt_save *s)
{
    return s->job.optimizer ? CKPT_N_FILE : 1;
}

int64_t ckpt_n_block(const ckpt_layout *l, bool optimizer)
{
    return l->file[CKPT_FILE_MODEL].n_block + (optimizer ? l->file[CKPT_FILE_OPTIMIZER].n_block : 0);
}

static ls_status check_job(const ls_ckpt_job *job, json_t **state)
{
    const char *text = job->state_json ? job->state_json : "{}";
    if (!ckpt_name_ok(job->name))
        return ls_fail(LS_E_ARG, "invalid checkpoint name \"%s\"; use a plain name such as step-40", job->name);
    LS_TRY(ckpt_check_pieces(job->model, job->piece, job->n_piece, job->optimizer));
    if (!job->piece && ls_compute_mixed(job->model->compute) && !job->model->unit[0].master)
        return ls_fail(LS_E_ARG, "the model has only %s parameters and no master weights to save",
                       ls_dtype_word(job->model->compute->ops->dtype));
    LS_TRY(ls_json_parse(text, strlen(text), "the trainer state", state));
    if (json_is_object(*state) && ckpt_depth(*state, 24) < 24) return LS_OK; /* the JSON writer nests 30 deep */
    json_decref(*state);
    *state = NULL;
    return ls_fail(LS_E_ARG, "the trainer state must be a JSON object with fewer than 24 levels");
}

static ls_status prepare(ckpt_save *s)
{
    const ls_ckpt_job *j = &s->job;
    LS_TRY(check_job(j, &s->state));
    for (int f = 0; f < n_file_of(s); f++)
        LS_TRY(ckpt_part_make(&s->part[f], s->layout, f, j->model, j->piece, j->n_piece, ckpt_rank(s->comm) == 0));
    memset(s->block, 0, (size_t)ckpt_n_block(s->layout, j->optimizer) * sizeof *s->block);
    if (ckpt_rank(s->comm) == 0) return LS_OK;
    s->tmp = ls_asprintf("%s/.tmp-%s-%020d", j->dir, j->name, 0); /* room for the process id of rank 0 */
    return s->tmp ? LS_OK : ls_nomem(strlen(j->dir), "a path");
}

static ls_status open_folder(ckpt_save *s)
{
    LS_TRY(ckpt_tmp_open(s->job.dir, s->job.name, &s->tmp, &s->lock));
    for (int f = 0; f < n_file_of(s); f++) {
        int fd = -1;
        char *path = ls_path_join(s->tmp, s->layout->file[f].name);
        ls_status st = path ? ls_sum_create(path, s->layout->file[f].nbytes, &fd) : ls_nomem(strlen(s->tmp), "a path");
        ls_free(path);
        LS_TRY(st);
        close(fd);
    }
    return LS_OK;
}

/* Broadcasts the process id of rank 0, which is part of the folder name, and sums the bytes of all workers. */
static ls_status match(ckpt_save *s)
{
    enum { NUMBER, BYTES, EDGES = BYTES + CKPT_N_FILE, N = EDGES + CKPT_N_FILE };
    int64_t sum[N] = {[NUMBER] = ckpt_rank(s->comm) ? 0 : (int64_t)getpid()};
    for (int f = 0; f < CKPT_N_FILE; f++) {
        sum[BYTES + f] = s->part[f].nbytes;
        sum[EDGES + f] = s->part[f].edges;
    }
    LS_TRY(ckpt_add(s->comm, (ls_view){sum, N, LS_I64}, LS_SITE));
    for (int f = 0; f < n_file_of(s); f++) {
        const ckpt_file *file = &s->layout->file[f];
        if (sum[BYTES + f] != file->nbytes)
            return ls_fail(LS_E_ARG, "all workers together write %lld bytes of %s, which has %lld",
                           (long long)sum[BYTES + f], file->name, (long long)file->nbytes);
        if (sum[EDGES + f] != ckpt_edge(file->nbytes) - ckpt_edge(0))
            return ls_fail(LS_E_ARG, "the pieces of all workers overlap and leave holes in %s", file->name);
    }
    LS_ASSERT(s->tmp);
    if (ckpt_rank(s->comm))
        snprintf(s->tmp, strlen(s->tmp) + 1, "%s/.tmp-%s-%" PRId64, s->job.dir, s->job.name, sum[NUMBER]);
    return LS_OK;
}

/* remove: also deletes the folder, after a failure. */
static void release(ckpt_save *s, bool remove)
{
    if (remove && s->tmp && ckpt_rank(s->comm) == 0) ckpt_remove_quietly(s->tmp);
    if (s->lock >= 0) close(s->lock);
    s->lock = -1;
    ls_free(s->tmp);
    s->tmp = NULL;
    json_decref(s->state);
    s->state = NULL;
    ckpt_sums_fini(&s->sums);
    for (int f = 0; f < CKPT_N_FILE; f++) {
        ls_free(s->part[f].span);
        s->part[f] = (ckpt_part){0};
    }
}

ls_status ckpt_save_begin(ckpt_save *s, ls_status st)
{
    s->lock = -1;
    s->tmp = NULL;
    s->state = NULL;
    s->sums.n = 0;
    for (int f = 0; f < CKPT_N_FILE; f++) s->part[f] = (ckpt_part){0};
    if (st == LS_OK) st = prepare(s);
    if (st == LS_OK && ckpt_rank(s->comm) == 0) st = open_folder(s);
    st = ckpt_agree(s->comm, st, LS_SITE);
    if (st == LS_OK) st = match(s);
    if (st != LS_OK) release(s, true);
    return st;
}

/* ---- write ---- */

ls_status ckpt_save_write(ckpt_save *s)
{
    int64_t *block = s->block;
    if (ckpt_rank(s->comm) == 0)
        LS_TRY(put_small(&s->job, s->state, s->tmp, &s->sums)); /* first, because they fail early */
    for (int f = 0; f < n_file_of(s); f++) {
        const ckpt_file *file = &s->layout->file[f];
        char *path = ls_path_join(s->tmp, file->name);
        ls_status st = path ? ckpt_part_write(&s->part[f], s->stage, path, file->nbytes, block)
                            : ls_nomem(strlen(s->tmp), "a path");
        ls_free(path);
        LS_TRY(st);
        block += file->n_block;
    }
    return LS_OK;
}

/* ---- finish ---- */

/* Hashes the blocks that nobody could, each worker its turn of them; of the known ones rank 0 keeps the hash and the others drop it,
 * so that the sum over workers is the whole table. */
static ls_status hash_rest(ckpt_save *s)
{
    const int rank = ckpt_rank(s->comm), size = ckpt_size(s->comm);
    int64_t *block = s->block, turn = 0;
    for (int f = 0; f < n_file_of(s); f++) {
        const ckpt_file *file = &s->layout->file[f];
        char *path = ls_path_join(s->tmp, file->name);
        ls_status st = path ? LS_OK : ls_nomem(strlen(s->tmp), "a path");
        for (int64_t b = 0; b < file->n_block && st == LS_OK; b++) {
            if (block[b]) block[b] = rank ? 0 : block[b];
            else if (turn++ % size == rank) st = ckpt_block_read(path, file->nbytes, b, &block[b]);
        }
        ls_free(path);
        LS_TRY(st);
        block += file->n_block;
    }
    return LS_OK;
}

/* Rank 0 has the hash of every block when it returns. */
static ls_status gather_blocks(ckpt_save *s)
{
    const ls_view all = {s->block, ckpt_n_block(s->layout, s->job.optimizer), LS_I64};
    LS_TRY(ckpt_add(s->comm, all, LS_SITE)); /* a block has one hash, the others are 0 */
    LS_TRY(ckpt_agree(s->comm, hash_rest(s), LS_SITE));
    if (s->comm) LS_TRY(ls_reduce(s->comm, all, 0, LS_SITE, NULL));
    return LS_OK;
}

static ls_status put_sums(ckpt_save *s)
{
    const int64_t *block = s->block;
    for (int f = 0; f < n_file_of(s); f++) {
        const ckpt_file *file = &s->layout->file[f];
        ls_sum *sum = ckpt_sums_next(&s->sums, file->name);
        sum->block = ls_alloc((size_t)file->n_block * sizeof *sum->block);
        if (!sum->block) return ls_nomem((size_t)file->n_block * sizeof *sum->block, "checksums");
        memcpy(sum->block, block, (size_t)file->n_block * sizeof *sum->block);
        sum->nbytes = file->nbytes;
        sum->n_block = file->n_block;
        sum->hash = ls_sum_root(sum->block, sum->n_block);
        block += file->n_block;
    }
    ckpt_sums own = {.n = 0};
    ls_str text = {0};
    ckpt_sums_text(&s->sums, &text);
    ls_status st = put_text(&own, s->tmp, CKPT_SUMS, &text);
    ckpt_sums_fini(&own);
    return st;
}

static ls_status publish(ckpt_save *s)
{
    const ls_ckpt_job *j = &s->job;
    LS_TRY(put_sums(s));
    LS_TRY(ckpt_publish(j->dir, s->tmp, j->name, s->later));
    ls_info("checkpoint", "saved %s/%s (step %lld)", j->dir, j->name, (long long)j->step);
    ckpt_prune(j->dir, j->name, j->step, j->keep_last, s->later);
    return LS_OK;
}

ls_status ckpt_save_finish(ckpt_save *s, ls_status st)
{
    st = ckpt_agree(s->comm, st, LS_SITE);
    if (st == LS_OK) st = gather_blocks(s);
    if (st == LS_OK) st = ckpt_agree(s->comm, ckpt_rank(s->comm) ? LS_OK : publish(s), LS_SITE);
    release(s, st != LS_OK);
    return st;
}

void ckpt_save_drop(ckpt_save *s)
{
    release(s, true);
}

ls_status ckpt_save_alone(const ls_ckpt_job *job, ckpt_stage *stage)
{
    ckpt_layout layout;
    LS_TRY(ckpt_layout_init(&layout, job->model));
    const size_t nbytes = (size_t)ckpt_n_block(&layout, job->optimizer) * sizeof(int64_t);
    ckpt_save *s = ls_alloc(sizeof *s + nbytes);
    ls_status st = s ? LS_OK : ls_nomem(sizeof *s + nbytes, "a checkpoint job");
    if (s) {
        s->job = *job;
        s->layout = &layout;
        s->stage = stage;
        s->block = (int64_t *)(void *)(s + 1);
        st = ckpt_save_begin(s, LS_OK);
        if (st == LS_OK) st = ckpt_save_finish(s, ckpt_save_write(s));
    }
    ls_free(s);
    ckpt_layout_fini(&layout);
    return st;
}

ls_status ls_ckpt_save(const ls_ckpt_job *job)
{
    ckpt_stage stage;
    LS_TRY(ckpt_stage_open(&stage, job->model->compute));
    ls_status st = ckpt_stage_mark(&stage);
    if (st == LS_OK) st = ckpt_save_alone(job, &stage);
    ckpt_stage_close(&stage);
    return st;
}
