// A stand-in for miniaudio.h, which the Go module of Ollama lacks. Every
// function reports failure, so audio input to the llama.cpp runner is refused
// as undecodable and everything else works. Build from a git clone of Ollama
// (patch-ollama --src) to have audio.
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef int ma_result;
typedef uint64_t ma_uint64;
typedef int ma_format;

enum { MA_SUCCESS = 0, MA_NOT_IMPLEMENTED = -29 };
enum { ma_format_f32 = 5 };

typedef struct { int unused; } ma_decoder_config;
typedef struct { int unused; } ma_decoder;

static inline ma_decoder_config ma_decoder_config_init(ma_format format, uint32_t channels, uint32_t sample_rate) {
    (void) format; (void) channels; (void) sample_rate;
    ma_decoder_config config = { 0 };
    return config;
}

static inline ma_result ma_decoder_init_memory(const void * data, size_t size, const ma_decoder_config * config, ma_decoder * decoder) {
    (void) data; (void) size; (void) config; (void) decoder;
    return MA_NOT_IMPLEMENTED;
}

static inline ma_result ma_decoder_get_length_in_pcm_frames(ma_decoder * decoder, ma_uint64 * length) {
    (void) decoder;
    *length = 0;
    return MA_NOT_IMPLEMENTED;
}

static inline ma_result ma_decoder_read_pcm_frames(ma_decoder * decoder, void * out, ma_uint64 count, ma_uint64 * read) {
    (void) decoder; (void) out; (void) count;
    *read = 0;
    return MA_NOT_IMPLEMENTED;
}

static inline ma_result ma_decoder_uninit(ma_decoder * decoder) {
    (void) decoder;
    return MA_SUCCESS;
}
