/* Stands for the CUDA driver on a machine without a GPU: the functions that worker/cuda_driver.py calls, on
 * the host's memory. FAILING_STEP and FAILING_CODE in the environment make one function fail; "nothing" in
 * FAILING_STEP makes copies do nothing. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static int code_of(const char* step) {
  const char *failing = getenv("FAILING_STEP"), *code = getenv("FAILING_CODE");
  return failing != NULL && code != NULL && strcmp(failing, step) == 0 ? atoi(code) : 0;
}

static int copies(void) {
  const char* failing = getenv("FAILING_STEP");
  return failing == NULL || strcmp(failing, "nothing") != 0;
}

int cuInit(unsigned flags) { return (void)flags, code_of("cuInit"); }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuDeviceGet(int* device, int index) { return *device = index, 0; }
int cuDeviceGetName(char* name, int size, int device) {
  return (void)device, strncpy(name, "A GPU of the host", (size_t)size), 0;
}
int cuDeviceGetUuid(unsigned char* uuid, int device) {
  for (int i = 0; i < 16; ++i) uuid[i] = (unsigned char)i;
  return (void)device, 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int device) { return (void)device, *bytes = 1u << 30, 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  return (void)device, *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute, 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) { return (void)device, *context = context, 0; }
int cuCtxSetCurrent(void* context) { return (void)context, 0; }
int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  *address = (uint64_t)(uintptr_t)calloc(1, bytes);
  return code_of("cuMemAlloc_v2");
}
int cuMemsetD32_v2(uint64_t address, unsigned value, size_t words) {
  for (size_t i = 0; i < words; ++i) ((unsigned*)(uintptr_t)address)[i] = value;
  return 0;
}
int cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t bytes) {
  if (copies()) memcpy((void*)(uintptr_t)to, (void*)(uintptr_t)from, bytes);
  return 0;
}
int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
  if (copies()) memcpy(to, (void*)(uintptr_t)from, bytes);
  return code_of("cuMemcpyDtoH_v2");
}
int cuCtxSynchronize(void) { return code_of("cuCtxSynchronize"); }
