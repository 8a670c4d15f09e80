// How the tokens of a sequence are picked, as a row of 64-bit words: see head_pick.py.
#pragma once

#define MAX_BIASES 64
#define MAX_FILTERS 8
#define UNSURE (-1)  // the answer where the definition has to decide

// Words of a request; filters follow, three words each, then ids and values of biases.
enum { N_VOCAB, N_BEST, N_BIASES, KEY_LOW = 5, KEY_HIGH, SEQUENCE, N_FILTERS, FIRST_FILTER };
enum { FILTER_WORDS = 3, BIAS_IDS = FIRST_FILTER + FILTER_WORDS * MAX_FILTERS, BIAS_VALUES = BIAS_IDS + MAX_BIASES };
enum { REQUEST_WORDS = BIAS_VALUES + MAX_BIASES };
enum { TOP_K, TOP_P, MIN_P, TEMPERATURE };
