# ggml-paged-emulator: the GPU side of the op on an emulated GPU, for tests.
if (NOT TARGET ggml-paged-emulator)
    file(GLOB KVP_EMULATOR_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cpp ${CMAKE_CURRENT_LIST_DIR}/../cuda/*.cpp)
    add_library(ggml-paged-emulator STATIC ${KVP_EMULATOR_SOURCES})
    target_include_directories(ggml-paged-emulator PUBLIC ${CMAKE_CURRENT_LIST_DIR}/..)
    target_link_libraries(ggml-paged-emulator PUBLIC ggml-paged)
    # Kernels say which operations may be fused; a CPU with FMA would fuse others too.
    target_compile_options(ggml-paged-emulator PUBLIC -ffp-contract=off)
endif()
