//! What Windows gives this process of a GPU's memory: `IDXGIAdapter3::QueryVideoMemoryInfo`.
//!
//! `dxgi.dll` is loaded when a device is opened, and from the system's folder only. Interfaces of COM are objects whose
//! first word is the address of a table of functions, which take the object first; the numbers below are the places
//! in these tables.

use platform::Bytes;
use platform::memory::VideoMemory;
use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;
use windows_sys::Win32::System::LibraryLoader::LOAD_LIBRARY_SEARCH_SYSTEM32;
use windows_sys::core::{GUID, HRESULT};

/// `IDXGIFactory4`.
const FACTORY: GUID = GUID::from_u128(0x1bc6ea02_ef36_464f_bf0c_21ca39e5168a);
/// `IDXGIAdapter3`.
const ADAPTER: GUID = GUID::from_u128(0x645967a4_1392_4310_a798_8053ce3e93fd);

/// `IUnknown::Release`.
const RELEASE: usize = 2;
/// `IDXGIFactory4::EnumAdapterByLuid`.
const ADAPTER_BY_LUID: usize = 26;
/// `IDXGIAdapter::GetDesc`.
const DESCRIBE: usize = 8;
/// `IDXGIAdapter3::QueryVideoMemoryInfo`.
const QUERY: usize = 14;

/// `DXGI_ADAPTER_DESC`.
#[repr(C)]
struct Description {
    name: [u16; 128],
    ids: [u32; 4],
    dedicated_video: usize,
    dedicated_system: usize,
    shared_system: usize,
    luid: [u32; 2],
}

/// `DXGI_QUERY_VIDEO_MEMORY_INFO`.
#[repr(C)]
#[derive(Default)]
struct Info {
    budget: u64,
    usage: u64,
    reservable: u64,
    reserved: u64,
}

/// A reference to an object of COM.
struct Object(ptr::NonNull<c_void>);

// SAFETY: DXGI's factories and adapters may be used from any thread, as Microsoft documents. Ours are used by one at a
// time.
unsafe impl Send for Object {}

impl Object {
    /// # Safety
    /// The object's interface has a function of type `F` in this place.
    unsafe fn function<F: Copy>(&self, place: usize) -> F {
        // SAFETY: the object is alive, and as the caller promises; a pointer to a function is as large as any.
        unsafe {
            let table = *self.0.cast::<*const *const c_void>().as_ptr();
            std::mem::transmute_copy(&*table.add(place))
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: every interface has this function there; the reference is ours and not used afterwards.
        unsafe {
            let release: unsafe extern "system" fn(*mut c_void) -> u32 = self.function(RELEASE);
            release(self.0.as_ptr());
        }
    }
}

/// The object that a function returns in its last argument.
fn made(make: impl FnOnce(*mut *mut c_void) -> HRESULT) -> Option<Object> {
    let mut object = ptr::null_mut();
    let result = make(&mut object);
    ptr::NonNull::new(object)
        .filter(|_| result >= 0)
        .map(Object)
}

type Create = unsafe extern "system" fn(*const GUID, *mut *mut c_void) -> HRESULT;

/// `CreateDXGIFactory1`. The library is loaded once: its objects live longer than any one question.
fn create_factory() -> Option<Create> {
    static CREATE: OnceLock<Option<Create>> = OnceLock::new();
    *CREATE.get_or_init(|| {
        // SAFETY: a library of Windows, which programs load at any time; only the system's folder is searched.
        let library = unsafe {
            libloading::os::windows::Library::load_with_flags(
                "dxgi.dll",
                LOAD_LIBRARY_SEARCH_SYSTEM32,
            )
        }
        .ok()?;
        // SAFETY: the type is that of the documentation.
        let create = *unsafe { library.get::<Create>(b"CreateDXGIFactory1") }.ok()?;
        std::mem::forget(library);
        Some(create)
    })
}

/// An adapter, and what does not change.
struct Adapter {
    object: Object,
    dedicated: Bytes,
    shared: Bytes,
}

impl Adapter {
    fn find(luid: [u8; 8]) -> Option<Self> {
        type ByLuid =
            unsafe extern "system" fn(*mut c_void, u64, *const GUID, *mut *mut c_void) -> HRESULT;
        type Describe = unsafe extern "system" fn(*mut c_void, *mut Description) -> HRESULT;
        let create = create_factory()?;
        // SAFETY: a pointer is written to a local if the interface is known.
        let factory = made(|factory| unsafe { create(&FACTORY, factory) })?;
        // SAFETY: the function in that place of `IDXGIFactory4`; eight bytes by value are a number.
        let object = made(|adapter| unsafe {
            let by_luid: ByLuid = factory.function(ADAPTER_BY_LUID);
            by_luid(
                factory.0.as_ptr(),
                u64::from_le_bytes(luid),
                &ADAPTER,
                adapter,
            )
        })?;
        let mut description = Description {
            name: [0; 128],
            ids: [0; 4],
            dedicated_video: 0,
            dedicated_system: 0,
            shared_system: 0,
            luid: [0; 2],
        };
        // SAFETY: the function in that place of `IDXGIAdapter`; the description is written to a live local.
        let described = unsafe {
            let describe: Describe = object.function(DESCRIBE);
            describe(object.0.as_ptr(), &mut description)
        };
        (described >= 0).then_some(Adapter {
            object,
            dedicated: Bytes(description.dedicated_video as u64),
            shared: Bytes(description.shared_system as u64),
        })
    }

    /// The budget and the usage of a group of segments: 0 is the GPU's own memory, 1 is RAM.
    fn query(&self, group: u32) -> Option<(Bytes, Bytes)> {
        type Query = unsafe extern "system" fn(*mut c_void, u32, u32, *mut Info) -> HRESULT;
        let mut info = Info::default();
        // SAFETY: the function in that place of `IDXGIAdapter3`; the numbers are written to a live local. The first GPU
        // of an adapter is 0.
        let queried = unsafe {
            let query: Query = self.object.function(QUERY);
            query(self.object.0.as_ptr(), 0, group, &mut info)
        };
        (queried >= 0).then_some((Bytes(info.budget), Bytes(info.usage)))
    }

    fn memory(&self) -> Option<VideoMemory> {
        Some(VideoMemory {
            dedicated: self.dedicated,
            shared: self.shared,
            local: self.query(0)?,
            non_local: self.query(1)?,
        })
    }
}

/// Reads what Windows says of the memory of the device with this number: nothing if it does not know it.
pub(crate) fn video_memory(luid: Option<[u8; 8]>) -> impl FnMut() -> Option<VideoMemory> {
    let adapter = luid.and_then(Adapter::find);
    move || adapter.as_ref()?.memory()
}
