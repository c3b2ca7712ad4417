#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "registration.h"
#include "stable/scale.h"

// STABLE_TORCH_LIBRARY takes its namespace literally; these let it be a macro.
#define PINPROBE_STABLE(name, module) STABLE_TORCH_LIBRARY(name, module)
#define PINPROBE_STABLE_IMPL(name, key, module) STABLE_TORCH_LIBRARY_IMPL(name, key, module)

using torch::stable::Tensor;

static Tensor scale(Tensor input, double factor) {
  STD_TORCH_CHECK(input.scalar_type() == torch::headeronly::ScalarType::Float,
                  "input must be float32");
  STD_TORCH_CHECK(input.is_contiguous(), "input must be contiguous");
  Tensor out = torch::stable::empty_like(input);
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(input.get_device(), &stream));
  const cudaError_t status = launch_scale(
      static_cast<float*>(out.mutable_data_ptr()), static_cast<const float*>(input.const_data_ptr()),
      input.numel(), static_cast<float>(factor), static_cast<cudaStream_t>(stream));
  STD_TORCH_CHECK(status == cudaSuccess, "scale: ", cudaGetErrorString(status));
  return out;
}

PINPROBE_STABLE(TORCH_EXTENSION_NAME, ops) {
  ops.def("scale(Tensor input, float factor) -> Tensor");
}

PINPROBE_STABLE_IMPL(TORCH_EXTENSION_NAME, CUDA, ops) { ops.impl("scale", TORCH_BOX(&scale)); }

PINPROBE_IMPORTABLE(_C_stable_libtorch)
