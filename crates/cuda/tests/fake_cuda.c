/* A GPU driver without a GPU: each call is told to a hook of the test, which says what it returns. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DEVICE 40
#define DEVICE_ADDRS ((uint64_t)1 << 48)

int (*fake_hook)(const char *call, const void *addr, size_t len);

static char context;

int cuInit(unsigned flags)
{
	return fake_hook("cuInit", NULL, flags);
}

int cuGetErrorName(int code, const char **name)
{
	switch (code) {
	case 2: *name = "CUDA_ERROR_OUT_OF_MEMORY"; return 0;
	case 100: *name = "CUDA_ERROR_NO_DEVICE"; return 0;
	case 101: *name = "CUDA_ERROR_INVALID_DEVICE"; return 0;
	case 712: *name = "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"; return 0;
	default: *name = NULL; return 1;
	}
}

int cuDeviceGet(int *device, int ordinal)
{
	*device = DEVICE + ordinal;
	return fake_hook("cuDeviceGet", NULL, ordinal);
}

int cuDevicePrimaryCtxRetain(void **retained, int device)
{
	*retained = &context;
	return fake_hook("cuDevicePrimaryCtxRetain", NULL, device - DEVICE);
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
	return fake_hook("cuDevicePrimaryCtxRelease", NULL, device - DEVICE);
}

int cuCtxPushCurrent_v2(void *pushed)
{
	return fake_hook("cuCtxPushCurrent", NULL, pushed != &context);
}

int cuCtxPopCurrent_v2(void **popped)
{
	*popped = &context;
	return fake_hook("cuCtxPopCurrent", NULL, 0);
}

int cuMemHostRegister_v2(void *addr, size_t len, unsigned flags)
{
	/* CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP */
	return flags != 3 ? 1 : fake_hook("cuMemHostRegister", addr, len);
}

int cuMemHostUnregister(void *addr)
{
	return fake_hook("cuMemHostUnregister", addr, 0);
}

int cuMemHostGetDevicePointer_v2(uint64_t *device_addr, void *addr, unsigned flags)
{
	*device_addr = DEVICE_ADDRS + (uintptr_t)addr;
	return fake_hook("cuMemHostGetDevicePointer", addr, flags);
}

int cuMemsetD8_v2(uint64_t device_addr, unsigned char byte, size_t len)
{
	memset((void *)(uintptr_t)(device_addr - DEVICE_ADDRS), byte, len);
	return 0;
}

int cuCtxSynchronize(void)
{
	return 0;
}
