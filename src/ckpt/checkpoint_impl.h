/* checkpoint_impl.h - what the checkpoint files share: agreement, checksums, folder names, layout, memory of devices, weights bound to
 * a model. */
#ifndef LS_CKPT_CHECKPOINT_IMPL_H
#define LS_CKPT_CHECKPOINT_IMPL_H

#include "ckpt/checkpoint.h"
#include "ckpt/safetensors.h"

#define CKPT_FORMAT    "lockstep-checkpoint"
#define CKPT_CONFIG    "config.json"
#define CKPT_GEN       "generation_config.json"
#define CKPT_TOKENIZER "tokenizer.json"
#define CKPT_MODEL     "model.safetensors"
#define CKPT_INDEX     "model.safetensors.index.json"
#define CKPT_OPTIMIZER "optimizer.safetensors"
#define CKPT_STATE     "trainer_state.json"
#define CKPT_SUMS      "checksums.json"

/* ---- workers (checkpoint_team.c); comm NULL: alone ---- */

ls_comm *ckpt_team(ls_comm *comm); /* NULL for a world of one */
int ckpt_rank(const ls_comm *comm);
int ckpt_size(const ls_comm *comm);
/* The worst status of all: a failure of any worker fails all of them, with its words. */
ls_status ckpt_agree(ls_comm *comm, ls_status mine, const char *site);
/* Rank 0's failure and its words become everyone's. Called by all, each with a failure of its own or an agreed one. */
ls_status ckpt_follow(ls_comm *comm, ls_status st, const char *site);
/* x of all workers added up, on every one of them; not by an all_reduce, so that those count gradients and nothing else. */
ls_status ckpt_add(ls_comm *comm, ls_view x, const char *site);

/* ---- checksums.json (checkpoint_sums.c) ---- */

#define CKPT_MAX_FILE 8
typedef struct ckpt_sums {
    const char *name[CKPT_MAX_FILE]; /* literals */
    ls_sum sum[CKPT_MAX_FILE];
    int n;
} ckpt_sums;
ls_sum *ckpt_sums_next(ckpt_sums *s, const char *name);
void ckpt_sums_text(const ckpt_sums *s, ls_str *out);
void ckpt_sums_fini(ckpt_sums *s);
/* Compares part `rank` of `size` of the listed files' blocks; `only` (may be NULL) restricts to the names it accepts. */
ls_status ckpt_sums_verify(const char *dir, bool (*only)(const char *name), int rank, int size);
bool ckpt_not_optimizer(const char *name);

/* ---- folders of a run (checkpoint_dir.c) ---- */

bool ckpt_name_ok(const char *name);
/* "step-40" with prefix "step-" -> 40; -1 when it is something else. */
int64_t ckpt_number(const char *name, const char *prefix);
/* A fresh, locked .tmp-<name>-<pid> in run_dir; ls_free *tmp, close *lock. */
ls_status ckpt_tmp_open(const char *run_dir, const char *name, char **tmp, int *lock);
/* Puts tmp in the place of run_dir/name in one step. later: what is out of sight then is left for ls_ckpt_clean to remove. */
ls_status ckpt_publish(const char *run_dir, const char *tmp, const char *name, bool later);
/* Removes step-N folders beyond the newest `keep` with N <= step; trouble is a warning. */
void ckpt_prune(const char *run_dir, const char *name, int64_t step, int keep, bool later);
/* Removes a tree without touching this thread's error trail. */
void ckpt_remove_quietly(const char *path);
/* The newest whole checkpoint beside `path` with a lower step (or any, below 0); NULL when there is none. */
char *ckpt_older_whole(const char *path, int64_t step);

/* ---- where elements lie in the two weight files (checkpoint_layout.c) ---- */

enum { CKPT_FILE_MODEL, CKPT_FILE_OPTIMIZER, CKPT_N_FILE };
#define CKPT_MOMENT_NAME 72 /* "m/" and the tensor's */

typedef struct ckpt_file {
    const char *name;
    ls_str head;             /* the bytes before the first tensor */
    int64_t nbytes, n_block; /* of the whole file                 */
} ckpt_file;

typedef struct ckpt_layout {
    ckpt_file file[CKPT_N_FILE];
    int64_t *at[LS_N_FLAT]; /* byte of its file at which a unit's buffer begins; one block */
} ckpt_layout;
ls_status ckpt_layout_init(ckpt_layout *l, const ls_model *m); /* on failure nothing is owed */
void ckpt_layout_fini(ckpt_layout *l);

/* Pieces given, or without any the model's own buffers: how many, and the i-th. */
int ckpt_n_piece(const ls_model *m, const ls_piece *piece, int n_piece);
ls_piece ckpt_piece(const ls_model *m, const ls_piece *piece, int i);
/* LS_E_ARG when one is not of this model or has no memory; those of moments count only with `optimizer`. */
ls_status ckpt_check_pieces(const ls_model *m, const ls_piece *piece, int n_piece, bool optimizer);

/* Bytes of a file that this worker writes, in order. */
typedef struct ckpt_span {
    int64_t at;
    size_t nbytes;
    const void *data;
    bool device; /* data is a device's memory */
} ckpt_span;
typedef struct ckpt_part {
    ckpt_span *span;
    int n;
    int64_t nbytes;
    int64_t edges; /* sum over spans of ckpt_edge(end) - ckpt_edge(begin) */
} ckpt_part;
/* 40 bits that stand for a place in a file. Parts cover a file exactly once when, and but for chance only when, their edges add
 * up to edge(end) - edge(0): then every other end is a beginning. */
int64_t ckpt_edge(int64_t at);
/* The part that the pieces make; with `head` the header too, which the layout must outlive. ls_free span. */
ls_status ckpt_part_make(ckpt_part *p, const ckpt_layout *l, int file, const ls_model *m, const ls_piece *piece,
                         int n_piece, bool head);
/* Writes and syncs it into the file that is there, and notes the hashes of the blocks that lie wholly in it. */
struct ckpt_stage;
ls_status ckpt_part_write(const ckpt_part *p, struct ckpt_stage *stage, const char *path, int64_t file_nbytes,
                          int64_t *block);
/* The hash of block b of a file, read back. */
ls_status ckpt_block_read(const char *path, int64_t file_nbytes, int64_t b, int64_t *hash);

/* ---- memory of a device, on its way (checkpoint_stage.c) ---- */

/* Out: by a thread of its own, while operations go on. Zeroed: there is no device. */
typedef struct ckpt_stage {
    const ls_device *device;
    int lane;
    char *buf[2];  /* the host's; the device reaches it          */
    ls_mark ready; /* what was queued before it comes before it  */
} ckpt_stage;
ls_status ckpt_stage_open(ckpt_stage *s, const ls_compute *c); /* on failure nothing is owed */
void ckpt_stage_close(ckpt_stage *s);
/* Reads from now on wait for the operations that are queued now, and not for later ones. */
ls_status ckpt_stage_mark(ckpt_stage *s);
bool ckpt_on_device(const ls_compute *c, const void *p);
/* The part's bytes in order, in pieces. */
typedef ls_status ckpt_put_fn(void *ctx, int64_t at, const char *data, size_t n);
ls_status ckpt_stage_put(ckpt_stage *s, const ckpt_part *p, ckpt_put_fn *put, void *ctx);

/* In: *room is where the first *n bytes of what `to` shall hold are to be written, at most nbytes of them; call again for the rest. It
 * is `to` itself unless that is a device's memory, and then it travels by next or close. */
typedef struct ckpt_fill {
    const ls_compute *compute;
    char *buf, *to;
    size_t n;
} ckpt_fill;
ls_status ckpt_fill_open(ckpt_fill *f, const ls_compute *c);
ls_status ckpt_fill_next(ckpt_fill *f, void *to, size_t nbytes, void **room, size_t *n);
ls_status ckpt_fill_close(ckpt_fill *f, ls_status st); /* st, or what the last copy met */

/* ---- one folder being written (checkpoint_save.c) ---- */

typedef struct ckpt_save {
    ls_ckpt_job job; /* borrowed, as all up to block */
    const ckpt_layout *layout;
    ls_comm *comm;  /* NULL: alone */
    bool later;     /* old folders go out of sight, and ls_ckpt_clean is owed behind finish: removing takes its time */
    int64_t *block; /* hashes of the files' blocks, 0 = not known; comm's memory, where there is one */
    ckpt_stage *stage;
    ckpt_part part[CKPT_N_FILE];
    ckpt_sums sums; /* rank 0: of the small files */
    json_t *state;
    char *tmp;
    int lock;
} ckpt_save;
int64_t ckpt_n_block(const ckpt_layout *l, bool optimizer);
/* With job, layout, comm, block and stage set. begin and finish are collective over comm and take what went before; write is not. After a
 * failed begin, after finish and after drop nothing is owed; drop gives up what was begun. */
ls_status ckpt_save_begin(ckpt_save *s, ls_status st);
ls_status ckpt_save_write(ckpt_save *s);
ls_status ckpt_save_finish(ckpt_save *s, ls_status st);
void ckpt_save_drop(ckpt_save *s);
/* All of it, by one worker; the stage was opened and marked. */
ls_status ckpt_save_alone(const ls_ckpt_job *job, ckpt_stage *stage);

/* Writes dir/name from memory, hashed and synced, and notes it in sums. */
ls_status ckpt_put(ckpt_sums *sums, const char *dir, const char *name, const void *data, size_t n);
/* Copies src to dir/name likewise. */
ls_status ckpt_put_file(ckpt_sums *sums, const char *dir, const char *name, const char *src);
int ckpt_depth(const json_t *v, int limit); /* nesting of a JSON value, counted up to limit */

/* ---- weights of a folder, bound to a model (hf.c) ---- */

typedef struct hf_set {
    ls_st_file *file;
    int n_file;
    const ls_st_tensor **src; /* one for each tensor of the model, units in order */
    int n_src;
} hf_set;
ls_status hf_open(hf_set *s, const ls_model *m, const char *dir);
void hf_close(hf_set *s);
int hf_n_tensor(const ls_model *m);
/* Fills the pieces of one kind from its tensors (one for each of the model's, units in order), and their padding with 0. Only a
 * device's memory can fail. */
ls_status hf_fill(const ls_st_tensor *const *src, const ls_model *m, ls_flat what, const ls_piece *piece, int n_piece);
/* LS_E_CONFIG unless the tensor of the file has the model's shape. */
ls_status hf_check_shape(const char *file, const ls_st_tensor *src, const ls_tensor *t);

#endif
