/* vocab_find.h - GPT-2's vocabulary: in a folder, in the cache, or fetched once. */
#ifndef LS_DATA_VOCAB_FIND_H
#define LS_DATA_VOCAB_FIND_H

#include "data/tokenizer.h"

/* Where the two files come from by default. */
#define LS_GPT2_URL "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main"

/* The folder of the cache: $LOCKSTEP_CACHE/gpt2, or ${XDG_CACHE_HOME:-~/.cache}/lockstep/gpt2. ls_free; NULL when out of
 * memory or when there is no home. */
char *ls_gpt2_cache_dir(void);

/* From vocab_dir when given (and nowhere else), else from the cache, else fetched from `url` (NULL: the default) into the
 * cache, checked by SHA-256. The words of a failure say which files to put where. LS_E_IO, LS_E_FORMAT, LS_E_NOMEM. */
ls_status ls_gpt2_find(const char *vocab_dir, const char *url, ls_tokenizer **out);

#endif
