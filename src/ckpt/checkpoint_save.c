/* checkpoint_save.c - writes one checkpoint folder.
 *
 *   begin     checks jobs, counts bytes
 *   open      rank 0 creates the temporary folder and both weight files and reserves their space; in the background a worker that sees them goes on
 *             with its writes at once, from buffers that training has not changed yet
 *   write     every worker writes its bytes of the weight files; rank 0 also the small files and the headers
 *   hash      the workers know the hashes of all blocks that one of them wrote completely, and share the rest
 *   publish   rank 0 writes checksums.json and renames the folder
 *
 * After each step the workers agree on the status; a failure of one removes the folder. A single worker (comm NULL) needs no agreement. */
#include "ckpt/checkpoint_impl.h"

#include "core/log.h"
#include "core/mem.h"

#include <limits.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- small files ---- */

/* Writes a file of the folder from memory and adds it to the checksums. from: a file with the same bytes, or NULL. */
static ls_status put(ckpt_save *s, const char *name, const void *data, size_t n, const char *from)
{
    char path[PATH_MAX];
    LS_TRY(ls_path_in(path, s->tmp, "%s", name));
    LS_TRY(ckpt_file_put(path, data, n, from));
    ckpt_sums_add(&s->sums, name, data, n, NULL);
    return LS_OK;
}

static ls_status put_text(ckpt_save *s, const char *name, ls_str *text)
{
    ls_status st = text->failed ? ls_nomem(text->cap, name) : put(s, name, text->data, text->len, NULL);
    ls_str_fini(text);
    return st;
}

static ls_status put_copy(ckpt_save *s, const char *name, const char *from)
{
    ls_fs_map map;
    LS_TRY(ls_fs_map_open(&map, from));
    ls_status st = put(s, name, map.data, map.n, from);
    ls_fs_map_close(&map);
    return st;
}

static ls_status put_tokenizer(ckpt_save *s)
{
    const char *from = s->job.tokenizer_path;
    if (!from) return LS_OK;
    if (!ls_fs_is_dir(from)) return put_copy(s, CKPT_TOKENIZER, from);
    LS_TRY(put_copy(s, CKPT_MERGES, ls_path_of(from, CKPT_MERGES).text));
    return put_copy(s, CKPT_VOCAB, ls_path_of(from, CKPT_VOCAB).text);
}

ls_status ckpt_save_small(ckpt_save *s)
{
    const ls_ckpt_job *job = &s->job;
    const ls_model_config *c = &job->model->cfg;
    ls_str text = {0};
    ls_jsonw w;
    ckpt_sums_begin(&s->sums);
    ls_model_config_write(c, &text);
    LS_TRY(put_text(s, CKPT_CONFIG, &text));

    ls_jsonw_init(&w, &text, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_bool(&w, "_from_model_config", 1);
    if (c->eos_id >= 0) { ls_jsonw_members(&w, LS_KV("bos_token_id", c->eos_id), LS_KV("eos_token_id", c->eos_id)); }
    ls_jsonw_close(&w);
    LS_TRY(put_text(s, CKPT_GEN, &text));
    LS_TRY(put_tokenizer(s));

    ls_jsonw_init(&w, &text, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_members(&w, LS_KV("format", CKPT_FORMAT), LS_KV("version", LS_CKPT_VERSION), LS_KV("step", job->step),
                     LS_KV("dtype", ls_dtype_word(job->model->compute->ops->wide)), LS_KV("optimizer", job->optimizer));
    ls_jsonw_key(&w, "trainer");
    ls_jsonw_value(&w, s->state);
    ls_jsonw_close(&w);
    LS_TRY(put_text(s, CKPT_STATE, &text));
    if (!job->timings_json) return LS_OK;
    return ckpt_file_put(ls_path_of(s->tmp, CKPT_TIMINGS).text, job->timings_json, strlen(job->timings_json), NULL);
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
    if (!ckpt_name_ok(job->name))
        return ls_fail(LS_E_INTERNAL, "invalid checkpoint name \"%s\"; use a plain name such as step-40", job->name);
    LS_TRY(ckpt_check_pieces(job->model, job->piece, job->n_piece, job->optimizer));
    if (!job->piece && ls_compute_mixed(job->model->compute) && !job->model->unit[0].master)
        return ls_fail(LS_E_INTERNAL, "the model has only %s parameters and no master weights to save",
                       ls_dtype_word(job->model->compute->ops->dtype));
    LS_TRY(ls_json_parse(job->state_json, strlen(job->state_json), "the trainer state", state));
    return json_is_object(*state) ? LS_OK : ls_fail(LS_E_INTERNAL, "the trainer state must be a JSON object");
}

static ls_status prepare(ckpt_save *s)
{
    const ls_ckpt_job *j = &s->job;
    char tmp[PATH_MAX];
    LS_TRY(ls_path_in(tmp, j->dir, CKPT_TMP_NAME, j->name, LLONG_MAX)); /* match() has no failure of one worker */
    LS_TRY(check_job(j, &s->state));
    for (int f = 0; f < n_file_of(s); f++)
        LS_TRY(ckpt_part_make(&s->part[f], s->layout, f, j->model, j->piece, j->n_piece, ckpt_rank(s->comm) == 0));
    memset(s->block, 0, (size_t)ckpt_n_block(s->layout, j->optimizer) * sizeof *s->block);
    return LS_OK;
}

static ls_status open_folder(ckpt_save *s)
{
    char path[PATH_MAX];
    LS_TRY(ckpt_tmp_open(s->job.dir, s->job.name, s->tmp, &s->lock));
    for (int f = 0; f < n_file_of(s); f++) {
        int fd = -1;
        LS_TRY(ls_path_in(path, s->tmp, "%s", s->layout->file[f].name));
        LS_TRY(ckpt_file_create(path, s->layout->file[f].nbytes, &fd));
        close(fd);
    }
    return LS_OK;
}

/* Broadcasts the process id of rank 0, which is part of the folder name, and whether an old folder has this name, and sums the bytes of all
 * workers. */
static ls_status match(ckpt_save *s)
{
    enum { NUMBER, OLD, BYTES, EDGES = BYTES + CKPT_N_FILE, N = EDGES + CKPT_N_FILE };
    char tmp[PATH_MAX];
    LS_TRY(ls_path_in(tmp, s->job.dir, CKPT_TMP_NAME, s->job.name, (long long)getpid()));
    const bool first = ckpt_rank(s->comm) == 0;
    int64_t sum[N] = {[NUMBER] = first ? (int64_t)getpid() : 0, [OLD] = first && ls_fs_exists(tmp)};
    for (int f = 0; f < CKPT_N_FILE; f++) {
        sum[BYTES + f] = s->part[f].nbytes;
        sum[EDGES + f] = s->part[f].edges;
    }
    LS_TRY(ckpt_add(s->comm, (ls_view){sum, N, LS_I64}, LS_SITE));
    for (int f = 0; f < n_file_of(s); f++) {
        const ckpt_file *file = &s->layout->file[f];
        if (sum[BYTES + f] != file->nbytes)
            return ls_fail(LS_E_INTERNAL, "all workers together write %lld bytes of %s, which has %lld",
                           (long long)sum[BYTES + f], file->name, (long long)file->nbytes);
        if (sum[EDGES + f] != ckpt_edge(file->nbytes) - ckpt_edge(0))
            return ls_fail(LS_E_INTERNAL, "the pieces of all workers overlap and leave holes in %s", file->name);
    }
    s->early = s->comm && s->background && !s->stage->device && !sum[OLD];
    return ckpt_rank(s->comm) ? ls_path_in(s->tmp, s->job.dir, CKPT_TMP_NAME, s->job.name, (long long)sum[NUMBER])
                              : LS_OK;
}

/* remove: also deletes the folder, after a failure. */
static void release(ckpt_save *s, bool remove)
{
    if (remove && *s->tmp && ckpt_rank(s->comm) == 0) ckpt_remove_quietly(s->tmp);
    if (s->lock >= 0) close(s->lock);
    json_decref(s->state);
    ls_str_fini(&s->sums.text);
    ckpt_stage_lock(s->stage); /* the trainer may want to copy: there is nothing left */
    for (int f = 0; f < CKPT_N_FILE; f++) {
        ls_free(s->part[f].span);
        s->part[f] = (ckpt_part){0};
    }
    ckpt_stage_unlock(s->stage);
}

ls_status ckpt_save_begin(ckpt_save *s, ls_status st, bool open)
{
    s->lock = -1;
    s->written = s->early = false;
    atomic_store(&s->late, false);
    s->tmp[0] = '\0';
    s->state = NULL;
    s->sums.text = (ls_str){0};
    for (int f = 0; f < CKPT_N_FILE; f++) s->part[f] = (ckpt_part){0};
    if (st == LS_OK) st = prepare(s);
    if (st == LS_OK && open) st = ckpt_save_work(s, CKPT_OPEN);
    st = ckpt_agree(s->comm, st, LS_SITE);
    if (st == LS_OK) st = match(s);
    if (st != LS_OK) release(s, true);
    return st;
}

static ls_status copy_parts(ckpt_save *s, char *room, int64_t n)
{
    for (int f = 0; f < n_file_of(s); f++) {
        const ckpt_file *file = &s->layout->file[f];
        const int64_t head = ckpt_rank(s->comm) ? 0 : (int64_t)file->head.len;
        n -= s->part[f].n ? s->part[f].nbytes - head : 0;
        if (n < 0)
            return ls_fail(LS_E_INTERNAL, "the memory for a copy of the checkpoint is %lld bytes too small",
                           -(long long)n);
        LS_TRY(ckpt_stage_take(s->stage, &s->part[f], &file->head, &room));
    }
    return LS_OK;
}

ls_status ckpt_save_copy(ckpt_save *s, char *room, int64_t n)
{
    ckpt_stage_lock(s->stage);
    const ls_status st = copy_parts(s, room, n);
    ckpt_stage_unlock(s->stage);
    return st;
}

/* ---- write ---- */

static ls_status write_files(ckpt_save *s)
{
    int64_t *block = s->block;
    char path[PATH_MAX];
    if (ckpt_rank(s->comm) == 0) LS_TRY(ckpt_save_small(s)); /* first, because they fail early */
    for (int f = 0; f < n_file_of(s); f++) {
        const ckpt_file *file = &s->layout->file[f];
        LS_TRY(ls_path_in(path, s->tmp, "%s", file->name));
        LS_TRY(ckpt_part_write(&s->part[f], s->stage, path, file->nbytes, s->background && !s->stage->device, block));
        block += file->n_block;
    }
    return LS_OK;
}

/* Whether rank 0's files exist, in the time until training changes the buffers. */
static bool see_files(const ckpt_save *s)
{
    bool all;
    do {
        all = true;
        for (int f = 0; f < n_file_of(s); f++)
            all = all && ls_fs_exists(ls_path_of(s->tmp, s->layout->file[f].name).text);
        if (!all) nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    } while (!all && !atomic_load(&s->late));
    return all;
}

static ls_status open_files(ckpt_save *s)
{
    const bool first = ckpt_rank(s->comm) == 0;
    if (first) LS_TRY(open_folder(s));
    if (!s->early || (!first && !see_files(s))) return LS_OK;
    s->written = true;
    return write_files(s);
}

/* ---- hash and publish ---- */

/* Hashes the blocks that nobody could, each worker its turn of them; of the known ones rank 0 keeps the hash and the others drop it,
 * so that the sum over workers is the whole table. */
static ls_status hash_rest(ckpt_save *s)
{
    const int rank = ckpt_rank(s->comm), size = ckpt_size(s->comm);
    int64_t *block = s->block, turn = 0;
    char path[PATH_MAX];
    for (int f = 0; f < n_file_of(s); f++) {
        const ckpt_file *file = &s->layout->file[f];
        LS_TRY(ls_path_in(path, s->tmp, "%s", file->name));
        for (int64_t b = 0; b < file->n_block; b++) {
            if (block[b]) block[b] = rank ? 0 : block[b];
            else if (turn++ % size == rank) LS_TRY(ckpt_block_read(path, file->nbytes, b, &block[b]));
        }
        block += file->n_block;
    }
    return LS_OK;
}

ls_status ckpt_save_sums(ckpt_save *s)
{
    const int64_t *block = s->block;
    char path[PATH_MAX];
    for (int f = 0; f < n_file_of(s); f++) {
        const ckpt_file *file = &s->layout->file[f];
        ckpt_sums_add(&s->sums, file->name, NULL, (size_t)file->nbytes, block);
        block += file->n_block;
    }
    ls_jsonw_close(&s->sums.w);
    ls_jsonw_close(&s->sums.w);
    if (s->sums.text.failed) return ls_nomem(s->sums.text.cap, CKPT_SUMS);
    LS_TRY(ls_path_in(path, s->tmp, CKPT_SUMS));
    return ckpt_file_put(path, s->sums.text.data, s->sums.text.len, NULL);
}

static ls_status publish(ckpt_save *s)
{
    const ls_ckpt_job *j = &s->job;
    LS_TRY(ckpt_save_sums(s));
    LS_TRY(ckpt_publish(j->dir, s->tmp, j->name));
    ls_info("checkpoint", "saved %s/%s (step %lld)", j->dir, j->name, (long long)j->step);
    return LS_OK;
}

/* ---- the steps ---- */

ls_status ckpt_save_work(ckpt_save *s, ckpt_work work)
{
    const bool first = ckpt_rank(s->comm) == 0;
    switch (work) {
    case CKPT_OPEN: return open_files(s);
    case CKPT_WRITE: return s->written ? LS_OK : write_files(s);
    case CKPT_HASH: return hash_rest(s);
    case CKPT_PUBLISH: return first ? publish(s) : LS_OK;
    }
    return LS_OK;
}

ls_status ckpt_save_meet(ckpt_save *s, ckpt_work work, ls_status st)
{
    const ls_view all = {s->block, ckpt_n_block(s->layout, s->job.optimizer), LS_I64};
    st = ckpt_agree(s->comm, st, LS_SITE);
    /* a block has one hash, the others are 0; after hashing, rank 0 needs them all */
    if (st == LS_OK && work == CKPT_WRITE) st = ckpt_add(s->comm, all, LS_SITE);
    if (st == LS_OK && work == CKPT_HASH && s->comm) st = ls_reduce(s->comm, all, 0, LS_SITE, NULL);
    if (st != LS_OK || work == CKPT_PUBLISH) release(s, st != LS_OK);
    return st;
}

void ckpt_save_drop(ckpt_save *s)
{
    release(s, true);
}
