/* prepare_impl.h - a running `prepare`, and its journal.
 *
 * The journal is a JSON file in the folder of unfinished work (data/stage.h). An entry has the place in the corpus up to which all tokens
 * are written, the sizes and hashes of the token files there, and the settings. Nothing is synced for it: a resumed run compares the files
 * with the hashes before it continues. */
#ifndef LS_DATA_PREPARE_IMPL_H
#define LS_DATA_PREPARE_IMPL_H

#include "data/prepare.h"
#include "data/seen.h"
#include "data/sink.h"
#include "data/stage.h"

typedef struct data_plain_doc { /* the plain-text document that is being read */
    bool open, to_val;
    bool journaled; /* the journal has an entry inside it */
    data_mark start;
    int64_t chars;
    ls_xxh hash;
} data_plain_doc;

typedef struct data_run {
    const ls_prepare_opts *o;
    data_job_rules rules;
    data_stage stage;
    const char *phase;
    double start, last_entry; /* seconds */
    int64_t done_before,
        done_start; /* bytes of inputs finished in earlier passes, and before this process, of this phase */
    int64_t total;
    int64_t text_bytes, text_start;
    data_sink train, val;
    bool to_val; /* this pass is the validation inputs */
    int64_t n_kept, n_short, n_long, n_duplicate;
    data_plain_doc doc;
    data_seen seen;
    ls_words words;
    ls_str settings; /* what the result depends on, one line each */
    char *command;
    ls_corpus_pos pos;   /* after the last block that was taken */
    bool leave;          /* the files of unfinished work must not be removed */
    bool has_entry;      /* the journal can be resumed */
    json_t *resume;      /* the entry to continue from, until its pass has begun */
    bool complete, tail; /* everything is encoded; train and val are split at a token */
} data_run;

/* Collects the settings and, with resume, reads the journal. LS_E_CONFIG: it is of other settings. */
ls_status data_journal_begin(data_run *r);
/* Continues with the counts of r->resume, after its token files are open; pos: the place in the corpus. */
ls_status data_journal_restore(data_run *r, ls_corpus_pos *pos);
ls_status data_journal_write(data_run *r, const ls_corpus_pos *pos, const data_mark *train, const data_mark *val);
ls_status data_journal_end(data_run *r); /* removes it */

ls_status data_write_meta(const data_run *r, const ls_tokenizer *tok, const ls_prepare_result *res);

#endif
