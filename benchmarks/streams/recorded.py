"""Figures recorded by the authors of the published system."""

# Mixtral, batch 64: tile -> cycles, off-chip bytes, on-chip bytes.
MIXTRAL_B64: dict[int | str, tuple[int, int, int]] = {
    16: (4_644_999, 4_229_431_552, 18_915_330),
    64: (2_813_010, 2_820_145_408, 37_789_698),
    "dynamic": (2_782_672, 2_820_145_408, 18_915_330),
}

# Qwen, batch 64, static tile 32: regions -> cycles, on-chip bytes.
TIME_MULTIPLEX = {
    128: (789_895, 82_595_842),
    64: (715_519, 66_998_274),
    32: (796_725, 44_716_034),
    16: (839_090, 32_460_802),
    8: (1_004_877, 24_662_018),
    4: (1_888_072, 20_205_570),
}

# Decode attention, batch 16: trace -> cycles of coarse, interleave, dynamic.
ATTENTION_B16 = {
    "kv_b16_stdev1456_2805_2820": (74_622, 32_424, 26_043),
    "kv_b16_stdev1455_0821_0836": (56_500, 27_325, 15_218),
    "kv_b16_stdev1454_0985_1000": (54_450, 25_687, 14_752),
    "kv_b16_stdev0987_3349_3364": (52_236, 20_361, 17_494),
    "kv_b16_stdev0987_3275_3290": (56_008, 23_227, 18_398),
    "kv_b16_stdev0986_3181_3196": (60_026, 25_042, 16_433),
    "kv_b16_stdev0480_3799_3814": (42_970, 15_361, 11_641),
    "kv_b16_stdev0479_2477_2492": (41_084, 12_416, 13_482),
    "kv_b16_stdev0479_1063_1078": (31_900, 10_105, 9_455),
}
