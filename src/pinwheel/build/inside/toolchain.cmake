# Read by CMake (>= 3.21) from $CMAKE_TOOLCHAIN_FILE: puts the locked compilers, the launcher and a
# recipe's cache variables into any version of a package without touching its sources.
set(CMAKE_C_COMPILER /usr/bin/gcc)
set(CMAKE_CXX_COMPILER /usr/bin/g++)
set(CMAKE_CUDA_COMPILER /opt/cuda/bin/nvcc)
set(CMAKE_CUDA_HOST_COMPILER /usr/bin/g++)
set(CUDA_TOOLKIT_ROOT_DIR /opt/cuda CACHE PATH "")
set(CUDAToolkit_ROOT /opt/cuda)
foreach(_pinwheel_language C CXX CUDA)
  set(CMAKE_${_pinwheel_language}_COMPILER_LAUNCHER
    "/usr/bin/python3;-IS;/opt/pinwheel/launch.py" CACHE STRING "" FORCE)
endforeach()

# -objtemp: intermediate file names come from the object's name, not from a process id.
# -ffile-prefix-map (from the environment): __FILE__ and debug information name no build path.
set(_pinwheel_map "$ENV{PINWHEEL_PREFIX_MAP}")
set(CMAKE_C_FLAGS_INIT "${_pinwheel_map}")
set(CMAKE_CXX_FLAGS_INIT "${_pinwheel_map}")
string(REPLACE " " "," _pinwheel_host "${_pinwheel_map}")
set(CMAKE_CUDA_FLAGS_INIT "-objtemp -Xcompiler=${_pinwheel_host}")

# -s: the linker's build id is a hash of what it writes. sccache gives nvcc's steps a directory of a
# random name, which is in the debug information and so, would it be written, in the build id.
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-Wl,-s")
set(CMAKE_MODULE_LINKER_FLAGS_INIT "-Wl,-s")

include(${CMAKE_CURRENT_LIST_DIR}/recipe.cmake)
