/* vocab_find.h - finds the GPT-2 vocabulary in a folder or the cache, or downloads it. */
#ifndef LS_DATA_VOCAB_FIND_H
#define LS_DATA_VOCAB_FIND_H

#include "data/tokenizer.h"

/* Default download location. */
#define LS_GPT2_URL "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main"

/* Reads vocab_dir if given, else the cache, else downloads from `url` (NULL: the default) into the cache and checks SHA-256. The
 * error message says which files are needed and where. LS_E_IO, LS_E_FORMAT, LS_E_NOMEM. */
ls_status ls_gpt2_find(const char *vocab_dir, const char *url, ls_tokenizer **out);

#endif
