/* datasets.c - the text that comes with the program, and the public data sets of the reference projects (docs/REFERENCES.md). Sizes and
 * checksums are those of the public files; NULL where none is known. */
#include "data/fetch.h"

#define WEBTEXT "https://openaipublic.blob.core.windows.net/gpt-2/output-dataset/v1/"

extern const unsigned char ls_packaged_shakespeare[]; /* share/shakespeare.txt.zst, by cmake/EmbedText.cmake */
extern const size_t ls_packaged_shakespeare_size;

const ls_dataset ls_datasets[] = {
    {.name = "shakespeare",
     .what = "plays by William Shakespeare in English, public domain; in the program",
     .next = "lockstep train DIR/shakespeare.txt",
     .n_file = 1,
     .file = {{.name = "shakespeare.txt",
               .sha256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
               .nbytes = 1115394,
               .packed = ls_packaged_shakespeare,
               .npacked = &ls_packaged_shakespeare_size}}},
    {.name = "webtext",
     .what = "250,000 documents of WebText in English, with 5,000 for validation and 5,000 for tests (JSON lines)",
     .next = "lockstep prepare DIR/webtext.train.jsonl --val_input DIR/webtext.valid.jsonl --out data",
     .n_file = 3,
     .file = {{"webtext.train.jsonl", WEBTEXT "webtext.train.jsonl",
               "cf6db7bb5c72b5ac683e52ed102203ae36ad88089344aafe0d64ca5f09f3c5e8", 679129270, NULL, NULL},
              {"webtext.valid.jsonl", WEBTEXT "webtext.valid.jsonl",
               "e080dcf561d9ec19e9c4333ef1f48a48d1b677ff0b48bae2451f3aac5522033a", 13622302, NULL, NULL},
              {"webtext.test.jsonl", WEBTEXT "webtext.test.jsonl",
               "934921a11915ffee16ecba791777dafa66cea5fe9cd2ecceb9776a41b1717f4c", 13478245, NULL, NULL}}},
    {.name = "iwslt14-de-en",
     .what = "talks in German and English, IWSLT 2014, as published: one sentence per line between XML tags (tar.gz)",
     .next = "tar xzf DIR/de-en.tgz",
     .n_file = 1,
     .file = {{"de-en.tgz", "https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz", NULL, 19982877, NULL,
               NULL}}},
    {.name = "iwslt2017-de-en",
     .what = "talks in German and English, IWSLT 2017",
     .by_hand = "export the pair de-en from https://huggingface.co/datasets/IWSLT/iwslt2017 as JSON lines",
     .next =
         "DIR/iwslt2017-de-en.{train,valid,test}.jsonl; then: lockstep prepare --task translate --src_lang de --tgt_lang en "
         "--input DIR/iwslt2017-de-en.train.jsonl --val_input DIR/iwslt2017-de-en.valid.jsonl "
         "--test_input DIR/iwslt2017-de-en.test.jsonl --out data"},
    {.name = "wmt16-de-en",
     .what = "news and parliament in German and English, WMT 2016",
     .by_hand = "choose the corpora on https://www.statmt.org/wmt16/translation-task.html",
     .next = "DIR/wmt16-de-en.{train,valid,test}.{de,en}"},
    {.name = "oscar-en",
     .what = "web pages in English, OSCAR 23.01",
     .by_hand =
         "accept the terms on https://huggingface.co/datasets/oscar-corpus/OSCAR-2301 and download files of the language en",
     .next = "DIR/*.jsonl.zst; then: lockstep prepare DIR --text_key content --out data"},
    {.name = "openwebtext",
     .what = "8 million web pages in English, an open reproduction of WebText",
     .by_hand = "export https://huggingface.co/datasets/Skylion007/openwebtext as JSON lines with the key text",
     .next = "DIR/openwebtext.jsonl.zst; then: lockstep prepare DIR --val_fraction 0.0005 --out data"},
};
const size_t ls_n_dataset = sizeof ls_datasets / sizeof ls_datasets[0];
