# Included by CMake when it configures llama.cpp: builds everything but ggml quickly, at the
# cost of some speed of the code around the kernels.
cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL build_quickly)

# Files that cannot share a translation unit with others of their target.
set(alone models/gemma3n.cpp mtmd-helper.cpp mtmd-helper-gen.cpp)

function(build_quickly)
	foreach(target llama llama-common mtmd server-context llama-server-impl cpp-httplib)
		if(NOT TARGET ${target})
			message(FATAL_ERROR "llama.cpp has no target ${target} any more")
		endif()
		target_compile_options(${target} PRIVATE -O1 -w)
	endforeach()
	foreach(target llama mtmd)
		set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
		get_target_property(dir ${target} SOURCE_DIR)
		foreach(file IN LISTS alone)
			set_source_files_properties("${dir}/${file}" TARGET_DIRECTORY ${target}
				PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
		endforeach()
	endforeach()
endfunction()
