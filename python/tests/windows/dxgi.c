/* A dxgi.dll of which only what hip-alloc calls exists: the adapter with the number of device-sim's first device, and six
 * numbers in SIMULATED_VIDEO_MEMORY, in MiB: dedicated and shared memory, budget and usage of each of the two. */
#define COBJMACROS
#define INITGUID
#include <dxgi1_4.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static UINT64 number(int wanted) {
    char *text = getenv("SIMULATED_VIDEO_MEMORY");
    UINT64 value = 0;
    for (int at = 0; text && at <= wanted; at++) value = strtoull(text, &text, 10);
    return value << 20;
}

static int references;
static ULONG STDMETHODCALLTYPE release(void *self) { return --references; }

static HRESULT STDMETHODCALLTYPE describe(IDXGIAdapter3 *self, DXGI_ADAPTER_DESC *description) {
    memset(description, 0, sizeof *description);
    description->DedicatedVideoMemory = number(0);
    description->SharedSystemMemory = number(1);
    return S_OK;
}

static HRESULT STDMETHODCALLTYPE query(IDXGIAdapter3 *self, UINT node, DXGI_MEMORY_SEGMENT_GROUP group, DXGI_QUERY_VIDEO_MEMORY_INFO *info) {
    if (node != 0 || getenv("SIMULATED_VIDEO_MEMORY") == NULL) return DXGI_ERROR_INVALID_CALL;
    memset(info, 0, sizeof *info);
    info->Budget = number(group == DXGI_MEMORY_SEGMENT_GROUP_LOCAL ? 2 : 4);
    info->CurrentUsage = number(group == DXGI_MEMORY_SEGMENT_GROUP_LOCAL ? 3 : 5);
    return S_OK;
}

static IDXGIAdapter3Vtbl adapter_functions = {.Release = (void *)release, .GetDesc = describe, .QueryVideoMemoryInfo = query};
static struct {
    IDXGIAdapter3Vtbl *functions;
} adapter = {&adapter_functions};

static HRESULT STDMETHODCALLTYPE by_luid(IDXGIFactory4 *self, LUID luid, REFIID wanted, void **found) {
    *found = NULL;
    if (luid.LowPart != 0x5f00 || luid.HighPart != 0) return DXGI_ERROR_NOT_FOUND;
    if (!IsEqualGUID(wanted, &IID_IDXGIAdapter3)) return E_NOINTERFACE;
    references++;
    *found = &adapter;
    return S_OK;
}

static IDXGIFactory4Vtbl factory_functions = {.Release = (void *)release, .EnumAdapterByLuid = by_luid};
static struct {
    IDXGIFactory4Vtbl *functions;
} factory = {&factory_functions};

__declspec(dllexport) HRESULT WINAPI CreateDXGIFactory1(REFIID wanted, void **found) {
    *found = NULL;
    if (!IsEqualGUID(wanted, &IID_IDXGIFactory4)) return E_NOINTERFACE;
    references++;
    *found = &factory;
    return S_OK;
}
