/* SPDX-License-Identifier: Apache-2.0 */
/* cuemu-device: the device process of a rank, started by the library at the first CUDA call. */
#include "cuemu_device.h"

int main(void)
{
    return cuemu_device_main();
}
