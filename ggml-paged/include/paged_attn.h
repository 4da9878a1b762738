// Paged attention: softmax(scale * Q K^T + mask) V over K/V that a kv_pager holds.
//
// Layout
//
//   q      f32 [n_q][heads][dk]       any strides, dk contiguous
//   k_new  f32 [n_q][kv_heads][dk]    rows that this batch adds, any strides; or none
//   v_new  f32 [n_q][kv_heads][dv]
//   sinks  f32 [heads]                or none
//   out    f32 [n_q][heads][dv]       contiguous
//
// Head h reads KV head h / (heads / kv_heads). K/V pages: see kv_pager.h. There is no
// dense mask. Cell c is visible to query i when
//
//   seqs[c] has bit q_seq[i]
//   and (pos[c] <= q_pos[i] or q_except[i])
//   and (chunk == 0 or pos[c] >= q_pos[i] - q_pos[i] % chunk)
//   and pos[c] >= q_pos[i] - window          (window INT32_MAX: always)
//
// as in Ollama's Causal.buildMask. Score s = scale * <q, k>; with softcap > 0,
// s = softcap * tanh(s / softcap); with max_bias > 0, s += slope(h) * (pos[c] - q_pos[i])
// for pos[c] <= q_pos[i] (ALiBi, slopes as in ggml's soft_max). Accumulation is f32 from
// f32 Q; K and V are read in their own types. A sink adds exp(sinks[h]) to the
// denominator. A query that sees no cell gives zeros. Cells that no query sees are never
// read into a result, with any bytes in them.
//
// The result does not depend on which pages are in memory, on timing or on the number of
// threads. The one exception is a CUDA device with workers on the CPU (paged_attn_cuda.h):
// measured rates decide which of the two attends a page, and results differ within rounding.
//
// Choosing
//
// With kvp_params.select_cells, queries that kvp_batch_desc.q_select marks attend to about so
// many cells, if these are fewer than three quarters of all that they see. They do so in blocks of
// page_cells positions of their sequence: those with the first positions
// and the newest, and of the others those with the greatest bounds of scores, by the least and
// greatest value of each channel of their keys, which are read once for that. This is not exact,
// and what it leaves out has no bound. The choice of a query depends on its own row and on the
// rows of its sequence and their positions: not on where in the cells these are, on which pages
// are in memory, nor on other queries. Ops with ALiBi attend to all.
#pragma once

#include "kv_pager.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- batches -------------------------------------------------------------------------

// A batch is a forward pass's knowledge of a group's cells, copied when it begins, so
// that the next pass can be prepared while this one computes. The pager keeps the last
// KVP_BATCHES of each group; an op of an older one fails with -ESTALE.
typedef struct kvp_batch kvp_batch;
#define KVP_BATCHES 8u

typedef struct kvp_batch_desc {
    uint32_t         group;
    uint32_t         first_cell;  // a multiple of page_cells
    uint32_t         n_cells;     // cells [first_cell, first_cell + n_cells) are described
    const int32_t  * pos;         // [n_cells]
    const uint64_t * seqs;        // [n_cells] sequence bits, 0: unused
    uint32_t         n_q;
    const int32_t  * q_pos;       // [n_q]
    const uint32_t * q_seq;       // [n_q] 0..63
    const uint8_t  * q_except;    // [n_q] or NULL
    const uint32_t * q_cell;      // [n_q] where k_new and v_new rows go
    const uint8_t  * q_select;    // [n_q] or NULL, see "Choosing"
    int32_t          window;      // INT32_MAX: none
    int32_t          chunk;       // 0: none
    int              reserve;     // 1: only sizes matter; an op of it must not be computed
} kvp_batch_desc;

int  kvp_batch_begin(kvp_pager * pager, const kvp_batch_desc * desc, kvp_batch ** out);

// kvp_batch_except derives a batch with another exception per query. The derived batch
// lives as long as its source.
int  kvp_batch_except(kvp_batch * batch, const uint8_t * q_except, kvp_batch ** out);

// Class of a page, for queries [first, first+n) of the batch.
typedef enum kvp_class {
    KVP_EMPTY = 0,  // none of these queries sees a cell of the page, which is never loaded
    KVP_MIXED = 1,  // the predicates must be evaluated
    KVP_FULL  = 2,  // every query sees every one of its page_cells cells
} kvp_class;

typedef struct kvp_page_stats {
    uint32_t used;             // cells with a sequence
    int32_t  pos_min, pos_max; // over used cells
    uint64_t seqs_and, seqs_or;
} kvp_page_stats;

const kvp_batch_desc * kvp_batch_get(const kvp_batch * batch);  // the batch's own copies
uint32_t               kvp_batch_pages(const kvp_batch * batch); // pages in its range
uint32_t               kvp_batch_first_page(const kvp_batch * batch);
const kvp_page_stats * kvp_batch_page(const kvp_batch * batch, uint32_t page); // absolute number
kvp_class kvp_batch_class(const kvp_batch * batch, uint32_t page, uint32_t first, uint32_t n);

// kvp_visible evaluates the predicate above for one query and one cell (absolute number).
int  kvp_visible(const kvp_batch * batch, uint32_t query, uint32_t cell);

// kvp_batch_list writes the pages (absolute) that any query sees, ascending, to pages
// (room for kvp_batch_pages) and returns their number.
uint32_t kvp_batch_list(const kvp_batch * batch, uint32_t * pages);

// --- the op --------------------------------------------------------------------------

typedef struct kvp_params {
    uint32_t layer;     // of the pager
    uint32_t heads;     // query heads: a multiple of the layer's kv_heads
    float    scale, softcap, max_bias;
    uint32_t select_cells; // 0: queries attend to all cells; else see "Choosing" above
} kvp_params;

typedef struct kvp_f32 {
    const float * data;       // NULL: not given
    int64_t       row_stride;  // bytes from one token to the next
    int64_t       head_stride; // bytes from one head to the next
} kvp_f32;

typedef struct kvp_io {
    kvp_f32       q, k_new, v_new;
    const float * sinks;
    float       * out;
} kvp_io;

// An op is one attention layer of one forward pass, and lives as long as its batch.
typedef struct kvp_op kvp_op;

// kvp_supported returns 0 if ops of such a layer can be computed, else -EINVAL with a
// sentence. kvp_supported alone knows the shapes and types of the CPU's kernels, and
// kvp_op_new makes no op that kvp_supported refuses. A device may have fewer kernels
// (kvp_cuda_refuses) and leaves the other ops to the CPU. Of the layer only heads,
// dimensions and types count.
int  kvp_supported(const kvp_layer_desc * layer, uint32_t heads);

// kvp_op_new makes an op, or returns -EINVAL with a sentence for impossible shapes.
int  kvp_op_new(kvp_batch * batch, const kvp_params * params, kvp_op ** out);
const kvp_params * kvp_op_params(const kvp_op * op);
kvp_batch        * kvp_op_batch(const kvp_op * op);
kvp_pager        * kvp_op_pager(const kvp_op * op);

// kvp_op_chooses returns whether queries of an op may choose. Only the CPU computes
// such an op.
int  kvp_op_chooses(const kvp_op * op);

// kvp_select_stats are the counts of choices of a pager's ops so far.
typedef struct kvp_select_stats {
    uint64_t seen_blocks;    // that queries could have attended to, of each layer
    uint64_t chosen_blocks;  // of these, those that queries attended to
    uint64_t bounds_bytes;   // memory of bounds now
} kvp_select_stats;

void kvp_pager_select_stats(kvp_pager * pager, kvp_select_stats * out);

// kvp_bounds_bytes is the memory of the bounds of one block of a layer.
size_t kvp_bounds_bytes(const kvp_pager * pager, uint32_t layer);

// kvp_bounds_drop frees the bounds of a page in all layers of a group: of one that kvp_drop drops.
// No batch that describes a cell of the page may be computed any more.
void kvp_bounds_drop(kvp_pager * pager, uint32_t group, uint32_t page);

// kvp_cpu_work_bytes is the scratch memory that kvp_cpu_forward needs with n_threads.
size_t kvp_cpu_work_bytes(const kvp_op * op, uint32_t n_threads);

// kvp_cpu_forward computes the op with n_threads threads, each of which calls it once with
// its own number and otherwise equal arguments. Rows of k_new and v_new are written to
// their cells and then attended with the others. Waiting threads sleep. An error is sticky
// in the pager, and out is then zeros. out and work are not read before the first call.
int  kvp_cpu_forward(kvp_op * op, const kvp_io * io, uint32_t thread, uint32_t n_threads,
                     void * work, size_t work_bytes);

// kvp_cpu_page computes a part of an op: attention of its queries to the first `cells`
// cells of one page, whose rows are at data and are not changed meanwhile. kvp_cpu_page
// writes, for row query * heads + head,
//
//   m    f32 [rows]      the largest score; -inf where the row sees no cell
//   l    f32 [rows]      the sum of exp(score - m); 0 there
//   acc  f32 [rows][dv]  the sum of exp(score - m) * V; 0 there
//
// for a merge with other pages' parts by log-sum-exp. io has host pointers, of which only
// q is read: new rows are in their pages already or belong to other parts, and sinks
// belong to the merge. Any number of threads may call kvp_cpu_page at once; each thread
// keeps scratch memory between calls until the thread ends. The type is that of
// kvp_cuda_config.cpu_page; user, worker and cls are not used. An error is returned, with
// its sentence in kvp_last_error, and is not sticky; m, l and acc must then not be used.
int  kvp_cpu_page(void * user, uint32_t worker, kvp_op * op, const kvp_io * io, uint32_t page, uint32_t cells,
                  kvp_class cls, const kvp_page * data, float * m, float * l, float * acc);

// kvp_cpu_isa names the instruction set in use: "avx512", "avx2", "neon" or "generic".
const char * kvp_cpu_isa(void);

// --- for engines that keep ops in another shared library ------------------------------

// The functions above as a table: an op found in a tensor's parameters is computed
// through its first field, so that the backend library links nothing of this one.
//
// Functions are only added at the end: a table lacks the fields beyond its size.
#define KVP_IFACE_VERSION 1u

typedef struct kvp_iface {
    uint32_t version, size;
    size_t (*cpu_work_bytes)(const kvp_op * op, uint32_t n_threads);
    int    (*cpu_forward)(kvp_op * op, const kvp_io * io, uint32_t thread, uint32_t n_threads,
                          void * work, size_t work_bytes);
    const kvp_params *     (*params)(const kvp_op * op);
    kvp_batch *            (*batch)(const kvp_op * op);
    kvp_pager *            (*pager)(const kvp_op * op);
    const kvp_batch_desc * (*batch_get)(const kvp_batch * batch);
    uint32_t               (*batch_list)(const kvp_batch * batch, uint32_t * pages);
    uint32_t               (*batch_pages)(const kvp_batch * batch);
    const kvp_page_stats * (*batch_page)(const kvp_batch * batch, uint32_t page);
    kvp_class              (*batch_class)(const kvp_batch * batch, uint32_t page, uint32_t first, uint32_t n);
    const kvp_layer_desc * (*layer_get)(const kvp_pager * pager, uint32_t layer);
    uint32_t (*page_cells)(const kvp_pager * pager);
    size_t   (*layer_row_k)(const kvp_pager * pager, uint32_t layer);
    size_t   (*layer_row_v)(const kvp_pager * pager, uint32_t layer);
    size_t   (*layer_v_offset)(const kvp_pager * pager, uint32_t layer);
    size_t   (*layer_page_bytes)(const kvp_pager * pager, uint32_t layer);
    int      (*resident)(const kvp_pager * pager, uint32_t layer, uint32_t page);
    int      (*pin)(kvp_pager * pager, uint32_t layer, uint32_t page, kvp_page * out);
    void     (*unpin)(kvp_pager * pager, uint32_t layer, uint32_t page, int dirty);
    void     (*prefetch)(kvp_pager * pager, uint32_t layer, const uint32_t * pages, uint32_t n);
    int      (*rows_write)(kvp_pager * pager, uint32_t layer, const uint32_t * cells, uint32_t n, const void * k, const void * v);
    void     (*fail)(kvp_pager * pager, int error, const char * message); // makes an error sticky
    int      (*cpu_page)(void * user, uint32_t worker, kvp_op * op, const kvp_io * io, uint32_t page, uint32_t cells,
                         kvp_class cls, const kvp_page * data, float * m, float * l, float * acc);
    uint64_t (*page_version)(const kvp_pager * pager, uint32_t layer, uint32_t page);
    int      (*chooses)(const kvp_op * op);
} kvp_iface;

// KVP_IFACE_HAS reports whether a table of unknown size has a field.
#define KVP_IFACE_HAS(iface, field) ((iface)->size >= offsetof(kvp_iface, field) + sizeof((iface)->field))

// Every kvp_op begins with a pointer to its table.
struct kvp_op_head {
    const kvp_iface * iface;
};

const kvp_iface * kvp_interface(void);

#ifdef __cplusplus
}
#endif
