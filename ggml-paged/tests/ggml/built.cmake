# ggml's libraries as they were built. There is a CPU module for each kind of processor; the
# test loads the best one for this machine.
foreach(kind ggml-base ggml-cpu)
    file(GLOB files "${KVP_GGML_LIBS}/lib${kind}*.so")
    if (NOT files)
        message(FATAL_ERROR "KVP_GGML_LIBS is '${KVP_GGML_LIBS}', which has no lib${kind}*.so; name the folder of an Ollama's libraries, such as build/ollama/lib/ollama after `make build`")
    endif()
endforeach()
add_library(ggml-base SHARED IMPORTED)
set_target_properties(ggml-base PROPERTIES
    IMPORTED_LOCATION "${KVP_GGML_LIBS}/libggml-base.so"
    INTERFACE_INCLUDE_DIRECTORIES "${ggml_root}/include")
set(ggml_cpu "${KVP_GGML_LIBS}")
