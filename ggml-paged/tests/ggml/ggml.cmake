# ggml's libraries from the patched tree, set up as Ollama's CMakeLists.txt does: ggml-base,
# and backends as modules that are loaded when the program runs.
set(BUILD_SHARED_LIBS ON)
set(GGML_BUILD ON)
set(GGML_SHARED ON)
set(GGML_BACKEND_DL ON)
set(GGML_BACKEND_SHARED ON)
set(GGML_SCHED_MAX_COPIES 4)
set(GGML_CUDA_PEER_MAX_BATCH_SIZE 128)
set(GGML_CUDA_GRAPHS ON)
set(GGML_CUDA_FA ON)
set(GGML_CUDA_COMPRESSION_MODE default)
set(GGML_CPU ON)
# One CPU module. On x86 it needs AVX2, as machines of the last ten years have.
foreach(feature SSE42 AVX F16C AVX2 BMI2 FMA)
    set(GGML_${feature} ON)
endforeach()
set(GGML_CCACHE OFF)
set(GGML_VERSION_MAJOR 0)
set(GGML_VERSION_MINOR 0)
set(GGML_VERSION_PATCH 0)
set(GGML_VERSION "0.0.0")

# Ollama loads libraries from folders of this name only.
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/lib/ollama)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/lib/ollama)
include(GNUInstallDirs)

# Warnings in ggml are not ours to see.
get_directory_property(kvp_options COMPILE_OPTIONS)
set(ggml_options ${kvp_options})
list(FILTER ggml_options EXCLUDE REGEX "-Wall|-Wextra")
set_directory_properties(PROPERTIES COMPILE_OPTIONS "${ggml_options};-w")

include_directories(${ggml_root}/src ${ggml_root}/src/ggml-cpu ${ggml_root}/src/ggml-cpu/amx)
add_compile_definitions(NDEBUG GGML_VERSION=0x0 GGML_COMMIT=0x0)
add_subdirectory(${ggml_root}/src ggml EXCLUDE_FROM_ALL)

if (with_cuda)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(GGML_PAGED_DIR ${paged_root})
    add_subdirectory(${ggml_root}/src/ggml-cuda ggml-cuda EXCLUDE_FROM_ALL)
    if (NOT KVP_GGML_CUDA_ALL)
        # What is left of flash attention is for heads of 64 and 128, one or four query heads
        # to a K/V head. Functions that are left out stay unresolved and are never called.
        get_target_property(sources ggml-cuda SOURCES)
        list(FILTER sources EXCLUDE REGEX "/template-instances/mm[qf]")
        list(FILTER sources EXCLUDE REGEX "/fattn-mma-f16-instance-.*ncols2_(2|8|16)\\.cu$")
        list(FILTER sources EXCLUDE REGEX "/fattn-tile-instance-dkq(40|72|80|96|112|256|576)-")
        set_property(TARGET ggml-cuda PROPERTY SOURCES ${sources})
        target_link_options(ggml-cuda PRIVATE -Wl,-z,lazy -Wl,--unresolved-symbols=ignore-all)
    endif()
endif()

set_directory_properties(PROPERTIES COMPILE_OPTIONS "${kvp_options}")
unset(CMAKE_RUNTIME_OUTPUT_DIRECTORY)
unset(CMAKE_LIBRARY_OUTPUT_DIRECTORY)
set(ggml_cpu $<TARGET_FILE:ggml-cpu>)
