// A program that checks the module by ggml's interface. It is given the module's path.
#include <dlfcn.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "ggml-alloc.h"
#include "ggml-backend-impl.h"
#include "ggml.h"

#define CHECK(condition)                                                          \
    if (!(condition)) {                                                           \
        fprintf(stderr, "%s:%d: not: %s\n", __FILE__, __LINE__, #condition);      \
        exit(1);                                                                  \
    }

namespace {

constexpr size_t memory = 64u << 20; // FAKEGPU_MEMORY of the test

ggml_backend_dev_t         device;
ggml_backend_buffer_type_t type;

// A Tensors is a context and the buffer of its tensors.
struct Tensors {
    ggml_context *        context = ggml_init({size_t(1) << 20, nullptr, true});
    ggml_backend_buffer_t buffer  = nullptr;

    void allocate() {
        buffer = ggml_backend_alloc_ctx_tensors_from_buft(context, type);
        CHECK(buffer != nullptr);
    }
    ggml_tensor * floats(int64_t n) { return ggml_new_tensor_1d(context, GGML_TYPE_F32, n); }
    ~Tensors() {
        ggml_backend_buffer_free(buffer);
        ggml_free(context);
    }
};

std::vector<float> read(const ggml_tensor * tensor) {
    std::vector<float> values(ggml_nelements(tensor));
    ggml_backend_tensor_get(tensor, values.data(), 0, ggml_nbytes(tensor));
    return values;
}

void write(ggml_tensor * tensor, float value) {
    const std::vector<float> values(ggml_nelements(tensor), value);
    ggml_backend_tensor_set(tensor, values.data(), 0, ggml_nbytes(tensor));
}

void shows_a_card() {
    ggml_backend_dev_props props;
    ggml_backend_dev_get_props(device, &props);
    CHECK(std::string(props.name) == "CUDA0" && std::string(props.library) == "CUDA");
    CHECK(std::string(props.id) == "GPU-fake-0000-0" && props.compute_major == 8 && props.driver_major == 13);
    CHECK(ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_GPU && !ggml_backend_buft_is_host(type));
    CHECK(!ggml_backend_dev_supports_buft(device, ggml_backend_cpu_buffer_type()));
}

size_t free_memory() {
    size_t free, total;
    ggml_backend_dev_memory(device, &free, &total);
    CHECK(total == memory);
    return free;
}

void limits_memory() {
    const size_t before = free_memory();
    ggml_backend_buffer_t most = ggml_backend_buft_alloc_buffer(type, before);
    CHECK(most != nullptr && free_memory() == 0);
    CHECK(ggml_backend_buft_alloc_buffer(type, 1) == nullptr);
    ggml_backend_buffer_free(most);
    CHECK(free_memory() == before);
}

// Another process with the same FAKEGPU_DIR is seen while it lives.
void sees_other_processes(const char * self, const char * module) {
    const std::string command = std::string(self) + " " + module + " hold";
    const size_t before = free_memory();
    FILE * other = popen(command.c_str(), "r");
    CHECK(fgetc(other) == '+' && free_memory() == before - (1u << 20));
    pclose(other);
    CHECK(free_memory() == before);
}

void hold() {
    CHECK(ggml_backend_buft_alloc_buffer(type, 1 << 20) != nullptr);
    printf("+");
    fflush(stdout);
    usleep(300 * 1000);
    _exit(0);
}

void begins_as_nan() {
    Tensors t;
    ggml_tensor * a = t.floats(100);
    t.allocate();
    for (const float value : read(a)) {
        CHECK(std::isnan(value));
    }
}

void pads_quantized_rows() {
    Tensors t;
    ggml_tensor * a = ggml_new_tensor_2d(t.context, GGML_TYPE_Q8_0, 64, 2);
    CHECK(ggml_backend_buft_get_alloc_size(type, a) == ggml_nbytes(a) + ggml_row_size(GGML_TYPE_Q8_0, 512 - 64));
    t.allocate();
    const char * beyond = (const char *) a->data + ggml_nbytes(a);
    CHECK(*beyond == 0 && *(beyond - 1) == (char) 0xFF);
}

// The host that does not wait sees no result, and may change the graph at once.
void computes_later(ggml_backend_t backend) {
    Tensors t;
    ggml_tensor * a = t.floats(64);
    ggml_tensor * b = ggml_scale(t.context, a, 2);
    t.allocate();
    write(a, 21);
    ggml_cgraph * graph = ggml_new_graph(t.context);
    ggml_build_forward_expand(graph, b);
    CHECK(ggml_backend_graph_compute_async(backend, graph, -1) == GGML_STATUS_SUCCESS);
    CHECK(std::isnan(read(b)[0]));
    void * data = b->data;
    b->data     = nullptr;
    ggml_graph_clear(graph);
    ggml_backend_synchronize(backend);
    b->data = data;
    CHECK(read(b)[63] == 42);
}

void transfers_in_order(ggml_backend_t backend) {
    Tensors t;
    ggml_tensor * a = t.floats(64);
    ggml_tensor * b = ggml_scale(t.context, a, 2);
    t.allocate();
    ggml_cgraph * graph = ggml_new_graph(t.context);
    ggml_build_forward_expand(graph, b);
    std::vector<float> in(64, 1), out(64, 0);
    ggml_backend_tensor_set_async(backend, a, in.data(), 0, ggml_nbytes(a));
    ggml_backend_graph_compute_async(backend, graph, -1);
    ggml_backend_tensor_get_async(backend, b, out.data(), 0, ggml_nbytes(b));
    in.assign(64, 5);
    CHECK(out[0] == 0);
    ggml_backend_synchronize(backend);
    CHECK(out[0] == 2);
}

// A copy between two streams, and an event, order their work.
void orders_streams(ggml_backend_t first, ggml_backend_t second) {
    Tensors t;
    ggml_tensor * a = t.floats(64);
    ggml_tensor * b = ggml_scale(t.context, a, 2);
    ggml_tensor * c = t.floats(64);
    ggml_tensor * d = t.floats(64);
    t.allocate();
    write(a, 4);
    ggml_cgraph * graph = ggml_new_graph(t.context);
    ggml_build_forward_expand(graph, b);
    ggml_backend_graph_compute_async(first, graph, -1);
    ggml_backend_tensor_copy_async(first, second, b, c);
    ggml_backend_event_t event = ggml_backend_event_new(device);
    ggml_backend_event_record(event, first);
    ggml_backend_event_wait(second, event);
    ggml_backend_tensor_copy_async(second, second, b, d);
    ggml_backend_synchronize(second);
    CHECK(read(c)[0] == 8 && read(d)[0] == 8);
    ggml_backend_event_synchronize(event);
    ggml_backend_event_free(event);
}

// The product of a weight matrix of a type, by a backend and in its memory.
std::vector<float> product(ggml_backend_t backend, ggml_type weights) {
    Tensors t;
    const int n = 256, rows = 48, columns = 3;
    ggml_tensor * w = ggml_new_tensor_2d(t.context, weights, n, rows);
    ggml_tensor * x = ggml_new_tensor_2d(t.context, GGML_TYPE_F32, n, columns);
    ggml_tensor * y = ggml_mul_mat(t.context, w, x);
    CHECK(ggml_backend_supports_op(backend, y));
    t.buffer = ggml_backend_alloc_ctx_tensors(t.context, backend);
    std::vector<float> values(n * rows), input(n * columns);
    for (size_t i = 0; i < values.size(); i++) {
        values[i] = sinf(i);
    }
    for (size_t i = 0; i < input.size(); i++) {
        input[i] = cosf(i);
    }
    std::vector<char> packed(ggml_nbytes(w));
    ggml_quantize_chunk(weights, values.data(), packed.data(), 0, rows, n, nullptr);
    ggml_backend_tensor_set(w, packed.data(), 0, packed.size());
    ggml_backend_tensor_set(x, input.data(), 0, ggml_nbytes(x));
    ggml_cgraph * graph = ggml_new_graph(t.context);
    ggml_build_forward_expand(graph, y);
    CHECK(ggml_backend_graph_compute(backend, graph) == GGML_STATUS_SUCCESS);
    return read(y);
}

// A tensor may lie where the buffer is not.
void takes_any_address(ggml_backend_t backend) {
    Tensors t;
    ggml_tensor * a = t.floats(64);
    ggml_tensor * b = ggml_scale(t.context, a, 3);
    t.allocate();
    std::vector<float> elsewhere(128, 1);
    a->data = elsewhere.data();
    b->data = elsewhere.data() + 64;
    write(a, 2);
    ggml_cgraph * graph = ggml_new_graph(t.context);
    ggml_build_forward_expand(graph, b);
    ggml_backend_graph_compute(backend, graph);
    CHECK(elsewhere[0] == 2 && read(b)[0] == 6 && elsewhere[127] == 6);
}

}  // namespace

int main(int argc, char ** argv) {
    void * library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    ggml_backend_reg_t registry = ((ggml_backend_init_t) dlsym(library, "ggml_backend_init"))();
    CHECK(std::string(ggml_backend_reg_name(registry)) == "CUDA" && ggml_backend_reg_dev_count(registry) == 1);
    device = ggml_backend_reg_dev_get(registry, 0);
    type   = ggml_backend_dev_buffer_type(device);
    if (argc > 2) {
        hold();
    }
    ggml_backend_t backend = ggml_backend_dev_init(device, nullptr);
    ggml_backend_t second  = ggml_backend_dev_init(device, nullptr);
    shows_a_card();
    limits_memory();
    sees_other_processes(argv[0], argv[1]);
    begins_as_nan();
    pads_quantized_rows();
    computes_later(backend);
    transfers_in_order(backend);
    orders_streams(backend, second);
    takes_any_address(backend);
    for (const ggml_type weights : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_K}) {
        const std::vector<float> y = product(backend, weights), wanted = product(backend, GGML_TYPE_F32);
        for (size_t i = 0; i < y.size(); i++) {
            CHECK(std::fabs(y[i] - wanted[i]) < 8); // of 128
        }
    }
    ggml_backend_free(second);
    ggml_backend_free(backend);
    CHECK(free_memory() == memory);
    printf("ok\n");
}
