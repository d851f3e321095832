/* Stands for the driver's NVML on a machine without a GPU: the functions that worker/gpu_state calls, built
 * as a library.
 *
 * Clocks fall and reasons come with each reading, so that a test sees medians, extremes and unions. It knows
 * one device.
 */
#include <string.h>
#include <unistd.h>

static unsigned readings;

int nvmlInit_v2(void) { return 0; }

int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  *device = &readings;
  return strcmp(uuid, "GPU-1") == 0 ? 0 : 6;
}

int nvmlDeviceGetClockInfo(void* device, unsigned kind, unsigned* megahertz) {
  if (device != &readings || kind != 1) return 2;
  ++readings;
  *megahertz = 2000 - 100 * readings;
#ifdef HANGS
  if (readings > 1) pause();
#endif
  return 0;
}

int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  *milliwatts = 500000 + 1000 * readings;
  return device == &readings ? 0 : 2;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  *reasons = readings == 2 ? 0x1 : readings == 3 ? 0x4 | 0x20 : 0x4;
  return device == &readings ? 0 : 2;
}

int nvmlDeviceGetMemoryInfo(void* device, unsigned long long sizes[3]) {
  sizes[0] = 80ull << 30;
  sizes[1] = 30ull << 30;
  sizes[2] = 50ull << 30;
  return device == &readings ? 0 : 2;
}
