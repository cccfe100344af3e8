/* checkpoint_impl.h - shared by the checkpoint files: agreement of workers, checksums, folder names, layout, device memory, tensors of a
 * model. */
#ifndef LS_CKPT_CHECKPOINT_IMPL_H
#define LS_CKPT_CHECKPOINT_IMPL_H

#include "ckpt/checkpoint.h"
#include "ckpt/safetensors.h"

#include <pthread.h>
#include <stdatomic.h>

#define CKPT_FORMAT    "lockstep-checkpoint"
#define CKPT_CONFIG    "config.json"
#define CKPT_GEN       "generation_config.json"
#define CKPT_TOKENIZER "tokenizer.json"
#define CKPT_VOCAB     "vocab.json" /* and merges.txt: the older form of a tokenizer */
#define CKPT_MERGES    "merges.txt"
#define CKPT_MODEL     "model.safetensors"
#define CKPT_INDEX     "model.safetensors.index.json"
#define CKPT_SHARD     "model-%05d-of-%05d.safetensors"
#define CKPT_OPTIMIZER "optimizer.safetensors"
#define CKPT_STATE     "trainer_state.json"
#define CKPT_TIMINGS   "timings.json"
#define CKPT_SUMS      "checksums.json"

/* ---- workers (checkpoint_team.c); comm NULL: single worker ---- */

ls_comm *ckpt_team(ls_comm *comm); /* NULL for a world of one */
int ckpt_rank(const ls_comm *comm);
int ckpt_size(const ls_comm *comm);
/* The worst status of all workers: a failure of one fails all, with its message. */
ls_status ckpt_agree(ls_comm *comm, ls_status mine, const char *site);
/* All workers get the status and message of rank 0. Called by all, with a local or an agreed status. */
ls_status ckpt_follow(ls_comm *comm, ls_status st, const char *site);
/* Sum of x over all workers, on every worker. It does not use all_reduce, whose counters are for gradients only. */
ls_status ckpt_add(ls_comm *comm, ls_view x, const char *site);

/* ---- checksums.json (checkpoint_sums.c) ---- */

#define CKPT_BLOCK ((size_t)1 << 20) /* bytes that have one hash */

/* The text of checksums.json, which grows with every file of the folder; zero-initialise, and ls_str_fini(&text) when done. */
typedef struct ckpt_sums {
    ls_str text;
    ls_jsonw w;
} ckpt_sums;
void ckpt_sums_begin(ckpt_sums *s);
/* known: the hashes of its blocks; NULL: they are computed from data. */
void ckpt_sums_add(ckpt_sums *s, const char *name, const void *data, size_t nbytes, const int64_t *known);
/* Reads all files and compares them with the list; fresh: from the disk, not from the page cache. LS_E_FORMAT: the
 * bytes differ, LS_E_IO: they cannot be read; the message has file and position. LS_E_STOPPED: *hurry (may be NULL) became true. It does not
 * map files: a disk that fails must not end the process. */
ls_status ckpt_sums_read(const char *dir, bool fresh, const atomic_bool *hurry);
/* Checks share `rank` of `size` of the blocks of the listed files, with or without the optimizer's. */
ls_status ckpt_sums_verify(const char *dir, bool optimizer, int rank, int size);

/* ---- folders of a run (checkpoint_dir.c) ---- */

bool ckpt_name_ok(const char *name);
/* "a/b/" -> "a", "b"; "b" -> ".", "b". */
ls_status ckpt_split_path(const char *path, char dir[PATH_MAX], char name[PATH_MAX]);
#define CKPT_TMP_NAME ".tmp-%s-%lld" /* of the checkpoint; process id */
/* Creates and locks that folder in run_dir. Close *lock. */
ls_status ckpt_tmp_open(const char *run_dir, const char *name, char tmp[PATH_MAX], int *lock);
/* Replaces run_dir/name by tmp atomically; the old folder is hidden until ls_ckpt_clean removes it, because deleting is slow. */
ls_status ckpt_publish(const char *run_dir, const char *tmp, const char *name);
/* Hides all but the newest `keep` step-N folders with N <= step, and those of the last `hours`, for ls_ckpt_clean; failures are warnings. */
void ckpt_prune(const char *run_dir, const char *name, int64_t step, int keep, double hours);
/* Renames run_dir/name to damaged-<name>, removes earlier damaged ones, which would fill the disk, and restores the folder `replaced` under the name if it still is a
 * checkpoint. Failures are warnings. */
void ckpt_set_bad(const char *run_dir, const char *name, const char *replaced);
/* Removes a tree without touching this thread's error trail. */
void ckpt_remove_quietly(const char *path);
/* The newest complete checkpoint of the run of `path`, also in the memory of this host, with a lower step (any step if negative); NULL if there is none. */
char *ckpt_older_whole(const char *path, int64_t step);
/* Repeats the failure to read `path` and adds the newest complete checkpoint, and what to do. */
ls_status ckpt_tell_older(ls_status st, const char *path);
/* The newest one of a folder with a step above `above`; *path NULL: none. whole: that matches its checksums; else LS_E_FORMAT if a newer one
 * cannot be read. skipped (may be NULL) gets a line for each that is passed over. */
ls_status ckpt_newest(const char *run_dir, int64_t above, bool whole, char **path, ls_str *skipped);
#define CKPT_NOT_NEEDED "a checkpoint that cannot be read is passed over, because it is not the newest"
/* A warning for each line, after `what`. */
void ckpt_warn_skipped(const char *what, const ls_str *skipped);

/* ---- positions of elements in the two weight files (checkpoint_layout.c) ---- */

enum { CKPT_FILE_MODEL, CKPT_FILE_OPTIMIZER, CKPT_N_FILE };
#define CKPT_MOMENT_NAME 72 /* "m/" and the tensor's */

typedef struct ckpt_file {
    const char *name;
    ls_str head;             /* the bytes before the first tensor */
    int64_t nbytes, n_block; /* of the whole file                 */
} ckpt_file;

typedef struct ckpt_layout {
    ckpt_file file[CKPT_N_FILE];
    int64_t *at[LS_N_FLAT]; /* first byte of the buffer of each unit in its file; one allocation */
} ckpt_layout;
ls_status ckpt_layout_init(ckpt_layout *l, const ls_model *m); /* on failure nothing needs cleanup */
void ckpt_layout_fini(ckpt_layout *l);

/* The given pieces, or without any the buffers of the model: number and i-th piece. */
int ckpt_n_piece(const ls_model *m, const ls_piece *piece, int n_piece);
ls_piece ckpt_piece(const ls_model *m, const ls_piece *piece, int i);
/* LS_E_ARG if a piece is outside this model or has no memory; pieces of moments are checked only with `optimizer`. */
ls_status ckpt_check_pieces(const ls_model *m, const ls_piece *piece, int n_piece, bool optimizer);

/* Bytes of a file that this worker writes, in order. */
typedef struct ckpt_span {
    int64_t at;
    size_t nbytes;
    const void *data;
    bool device; /* data is device memory */
} ckpt_span;
typedef struct ckpt_part {
    ckpt_span *span;
    int n;
    int64_t nbytes;
    int64_t edges; /* sum over spans of ckpt_edge(end) - ckpt_edge(begin) */
} ckpt_part;
/* A 40-bit hash of a file position. Parts cover a file exactly once if and (except by chance) only if their edges sum to
 * edge(end) - edge(0): then every other end is the beginning of another part. */
int64_t ckpt_edge(int64_t at);
/* The part of the file for these pieces, with `head` including the header. The layout must outlive it. Free span with ls_free. */
ls_status ckpt_part_make(ckpt_part *p, const ckpt_layout *l, int file, const ls_model *m, const ls_piece *piece,
                         int n_piece, bool head);

/* ---- the bytes of files (checkpoint_bytes.c) ---- */

/* Writes the part to an existing file, syncs it, and stores the hashes of the blocks that are completely in it. direct: past the page cache. */
struct ckpt_stage;
ls_status ckpt_part_write(ckpt_part *p, struct ckpt_stage *stage, const char *path, int64_t file_nbytes, bool direct,
                          int64_t *block);
/* The hash of block b of a file, read back. */
ls_status ckpt_block_read(const char *path, int64_t file_nbytes, int64_t b, int64_t *hash);

/* Creates a file and reserves its space, so that a full disk is reported at the start. */
ls_status ckpt_file_create(const char *path, int64_t nbytes, int *out);
ls_status ckpt_write_at(int fd, const char *path, const char *data, size_t n, int64_t at);
/* Creates, writes and syncs a file. from: a file with the same bytes, whose blocks the new one shares where the file system can; or NULL. */
ls_status ckpt_file_put(const char *path, const void *data, size_t n, const char *from);

/* CKPT_BLOCK bytes at an address that O_DIRECT can use; free *memory with ls_free. NULL: no memory. */
char *ckpt_block_alloc(void **memory);
/* Whether this errno of a direct read or write means that the file system cannot do it. */
bool ckpt_no_direct(int error);

/* ---- transfers from and to device memory (checkpoint_stage.c) ---- */

/* Copies from the device, on a separate thread while operations continue. Zeroed: no device. */
typedef struct ckpt_stage {
    const ls_device *device;
    int lane;
    char *buf[2];             /* pinned host memory*/
    ls_mark ready;            /* copies wait for operations queued before*/
    pthread_mutex_t *reading; /* may be NULL: held while spans of host memory are read and changed */
} ckpt_stage;
ls_status ckpt_stage_open(ckpt_stage *s, const ls_compute *c); /* on failure nothing needs cleanup */
void ckpt_stage_close(ckpt_stage *s);
/* Later reads wait for the operations that are queued now, not for those queued after. */
ls_status ckpt_stage_mark(ckpt_stage *s);
bool ckpt_on_device(const ls_compute *c, const void *p);
/* Where bytes of a part go: *to has room for those at `at` in the file, *n or fewer; *n becomes how many. */
typedef ls_status ckpt_room_fn(void *ctx, int64_t at, size_t *n, char **to);
/* The part's bytes in order, in pieces; spans of host memory become what is left of them. */
ls_status ckpt_stage_put(ckpt_stage *s, ckpt_part *p, ckpt_room_fn *room, void *ctx);
/* `reading`, if there is one. */
void ckpt_stage_lock(const ckpt_stage *s);
void ckpt_stage_unlock(const ckpt_stage *s);
/* Copies what is left of the part, except bytes of `head`, to *room (pinned if there is a device), which moves on, and lets the part refer
 * to the copy. */
ls_status ckpt_stage_take(ckpt_stage *s, ckpt_part *p, const ls_str *head, char **room);

/* Copies to the device: write the next *n bytes (at most nbytes) for `to` at *room, and call again for the rest. *room is `to` itself in
 * host memory; for device memory the next call or close copies the bytes. */
typedef struct ckpt_fill {
    const ls_compute *compute;
    char *buf, *to;
    size_t n;
} ckpt_fill;
ls_status ckpt_fill_open(ckpt_fill *f, const ls_compute *c);
ls_status ckpt_fill_next(ckpt_fill *f, void *to, size_t nbytes, void **room, size_t *n);
ls_status ckpt_fill_close(ckpt_fill *f, ls_status st); /* st, or the status of the last copy */

/* ---- one folder being written (checkpoint_save.c) ---- */

typedef struct ckpt_save {
    ls_ckpt_job job; /* borrowed, as all up to block */
    const ckpt_layout *layout;
    ls_comm *comm;  /* NULL: single worker */
    int64_t *block; /* hashes of the blocks of all files, 0 = unknown; shared memory of comm if given */
    ckpt_stage *stage;
    ckpt_part part[CKPT_N_FILE];
    ckpt_sums sums; /* rank 0 */
    json_t *state;
    char tmp[PATH_MAX]; /* the folder, or "" */
    int lock;
    bool background;  /* training goes on meanwhile */
    bool early;       /* workers write as soon as they see the files of rank 0, before they meet */
    bool written;     /* this one has                                                            */
    atomic_bool late; /* files that this worker does not see yet are not waited for              */
} ckpt_save;
int64_t ckpt_n_block(const ckpt_layout *l, bool optimizer);

/* The work of a worker, in order; after each all meet (checkpoint_save.c). */
typedef enum ckpt_work { CKPT_OPEN, CKPT_WRITE, CKPT_HASH, CKPT_PUBLISH } ckpt_work;
/* Set job, layout, comm, block, stage and background first. begin and meet are collective over comm and take the status so far; copy and work
 * are not. open: begin does CKPT_OPEN too. No cleanup is needed after a failed begin or meet, after the last meet, or after drop,
 * which abandons the checkpoint. After the last meet call ls_ckpt_clean. */
ls_status ckpt_save_begin(ckpt_save *s, ls_status st, bool open);
/* Copies what this worker has not written yet to `room`, of n bytes: from then on its buffers are not read. With stage->reading another thread may
 * be at work meanwhile. */
ls_status ckpt_save_copy(ckpt_save *s, char *room, int64_t n);
ls_status ckpt_save_work(ckpt_save *s, ckpt_work work);
ls_status ckpt_save_meet(ckpt_save *s, ckpt_work work, ls_status st);
void ckpt_save_drop(ckpt_save *s);
/* Parts of this work, by rank 0: the small files, and checksums.json from the hashes of all blocks. */
ls_status ckpt_save_small(ckpt_save *s);
ls_status ckpt_save_sums(ckpt_save *s);

/* ---- copies on every host (checkpoint_memory.c, checkpoint_hosts.c) ---- */

/* Makes the folder of this host; on a worker that leads. */
ls_status ckpt_memory_make(ls_ckpt_memory *m, const char *run_dir);

/* What a writer needs for ls_ckpt_write_beside. Zeroed: not used yet. */
typedef struct ckpt_hosts {
    char *buf[2];   /* pieces in flight; memory of the communicator */
    int64_t *block; /* hashes */
    ckpt_stage stage;
    bool written;   /* a checkpoint that is not published yet: */
    ckpt_save save; /* its job has a name of its own, and no texts any more */
    char name[256];
    char tmp[PATH_MAX]; /* the folder of this host, on the worker that leads; or "" */
    int lock;
} ckpt_hosts;
ls_status ckpt_hosts_write(ckpt_hosts *h, const ckpt_layout *l, ls_comm *comm, const ls_ckpt_job *job);
ls_status ckpt_hosts_publish(ckpt_hosts *h); /* after a write that succeeded */
void ckpt_hosts_fini(ckpt_hosts *h);

/* ---- weights of a folder, bound to a model (hf.c) ---- */

typedef struct hf_set {
    ls_st_file *file;
    int n_file;
    const ls_st_tensor **src; /* one for each tensor of the model, units in order */
    int n_src;
    void *own; /* of llm.c: matrices in the layout of the model */
} hf_set;
/* dir: a folder, or a model file of llm.c */
ls_status hf_open(hf_set *s, const ls_model *m, const char *dir);
/* Workers may read copies of their own: samples of every tensor are the same on all. LS_E_CONFIG. Collective over team; NULL: no one to ask. */
ls_status hf_compare(const hf_set *s, const ls_model *m, ls_comm *team);
void hf_close(hf_set *s);
int hf_n_tensor(const ls_model *m);
/* Fills the pieces of one kind from src (one tensor for each of the model, in unit order) and sets padding to 0. Fails only for
 * device memory. */
ls_status hf_fill(const ls_st_tensor *const *src, const ls_model *m, ls_flat what, const ls_piece *piece, int n_piece);
/* Binds the tensors of a model file of llm.c (llmc.c). */
ls_status llmc_bind(hf_set *s, const ls_model *m, const char *path);
/* LS_E_CONFIG if the shape in the file differs from the model. */
ls_status hf_check_shape(const char *file, const ls_st_tensor *src, const ls_tensor *t);

/* ---- writing files for other programs (export.c) ---- */

/* A file of tensors in one type, complete when it is closed. */
typedef struct ckpt_tensor_out {
    ls_fs_out file;
    ls_dtype dt;
    char *buf;
} ckpt_tensor_out;
ls_status ckpt_tensor_open(ckpt_tensor_out *o, const char *path, ls_dtype dt);
/* Appends a tensor in type o->dt, transposed if it is a matrix that the other program stores the other way. */
ls_status ckpt_tensor_put(ckpt_tensor_out *o, const ls_st_tensor *t, bool transposed);
ls_status ckpt_tensor_zeros(ckpt_tensor_out *o, int64_t nbytes);
/* Commits the file if st is LS_OK, else removes it; returns the worse status. */
ls_status ckpt_tensor_close(ckpt_tensor_out *o, ls_status st);

/* Writes the bound tensors as a model file of llm.c, or as a GGUF file. */
ls_status llmc_write(const hf_set *s, const ls_model *m, ls_dtype dt, const char *path);
struct ls_export_vocab;
ls_status gguf_write(const hf_set *s, const ls_model *m, ls_dtype dt, const struct ls_export_vocab *v,
                     const char *path);

/* ---- folders that commands write (hf_convert.c) ---- */

/* The folder and the name of an output: not the source, and existing only with `replace`. */
ls_status ckpt_open_output(const char *source, const char *out, bool replace, char dir[PATH_MAX], char name[PATH_MAX]);

/* ---- the Hugging Face cache (hub.c) ---- */

/* The newest snapshot of a model ("gpt2", "openai-community/gpt2"), to be freed. LS_E_IO: what to download, and where to. */
ls_status ckpt_hub_find(const char *option, const char *name, char **out);

#endif
