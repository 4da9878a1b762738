# ggml-paged-cuda: paged attention on CUDA devices. It links nothing of ggml-paged but the
# planner and executor (src/hybrid), which know no pager: everything else is reached through
# the op's table, so this can be part of another shared library.
find_package(CUDAToolkit REQUIRED)

file(GLOB KVP_CUDA_SOURCES CONFIGURE_DEPENDS
    ${CMAKE_CURRENT_LIST_DIR}/*.cu ${CMAKE_CURRENT_LIST_DIR}/*.cpp ${CMAKE_CURRENT_LIST_DIR}/../hybrid/*.cpp)
add_library(ggml-paged-cuda STATIC ${KVP_CUDA_SOURCES})
set_target_properties(ggml-paged-cuda PROPERTIES POSITION_INDEPENDENT_CODE ON CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON)
target_include_directories(ggml-paged-cuda PUBLIC ${CMAKE_CURRENT_LIST_DIR}/../../include PRIVATE ${CMAKE_CURRENT_LIST_DIR}/..)
# An engine that links another CUDA runtime names it.
set(KVP_CUDART CUDA::cudart_static CACHE STRING "the CUDA runtime to link")
target_link_libraries(ggml-paged-cuda PUBLIC ${KVP_CUDART} Threads::Threads)
