/* What every function for XLA begins with: an answer to which interface it was compiled with, and how it fails. */

#include <stdint.h>
#include <string.h>

#include "xla/ffi/api/c_api.h"

/* Tell XLA which version of its interface this was compiled with, if that is what it asks. */
static int is_question(const XLA_FFI_CallFrame *frame) {
  if (frame->extension_start == NULL || frame->extension_start->type != XLA_FFI_Extension_Metadata) return 0;
  XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)frame->extension_start)->metadata;
  metadata->api_version.major_version = XLA_FFI_API_MAJOR;
  metadata->api_version.minor_version = XLA_FFI_API_MINOR;
  metadata->traits = 0;
  metadata->state_type_id.type_id = 0;
  return 1;
}

static inline XLA_FFI_Error *failed(const XLA_FFI_Api *api, const char *message) {
  XLA_FFI_Error_Create_Args error = {sizeof error, NULL, message, XLA_FFI_Error_Code_INVALID_ARGUMENT};
  return api->XLA_FFI_Error_Create(&error);
}
