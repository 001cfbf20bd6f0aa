// SPDX-License-Identifier: Apache-2.0
// Made by tests/vectors/make.py from covey.protocol; do not edit.
pragma solidity 0.8.30;

import {EpochHeader, Receipt, Verdict, WorkLeaf} from "../../contracts/interfaces/ICoveyTypes.sol";

struct NodeRegistration {
    uint256 pool;
    address contributor;
    address node;
    uint256 nonce;
    uint256 deadline;
}

struct Countersignature {
    bytes32 receiptHash;
    uint64 signedAt;
    uint64 dueBy;
}

library VectorData {
    uint256 internal constant CHAIN = 31337;
    address internal constant CONTRACT = 0x5FbDB2315678afecb367f032d93F642f64180aa3;
    uint256 internal constant POOL = 3;
    bytes32 internal constant ROOT = 0x5f75937c66da25698b98f6fd4ad6b04b192727eb9a7a4f119013e5c191afdfd9;
    uint256 internal constant COUNT = 3;
    uint256 internal constant REWARDS = 5;
    uint256 internal constant PRICES = 7;

    function nodeRegistration(uint256 i) internal pure returns (NodeRegistration memory, bytes32, bytes32) {
        if (i == 0) {
            return (
                NodeRegistration(
                    17, 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266, 0x70997970C51812dc3A010C7d01b50e0d17dc79C8, 68, 85
                ),
                0x80bd758c0051cc8315f2f91acb0b2a35b054e72ca478999b5cc8d19b9dedc668,
                0xbf423f21794e5f4f25e6d024228988ba3ee065c171f78e48ff585b3446a72f82
            );
        }
        if (i == 1) {
            return (
                NodeRegistration(
                    0, 0x0000000000000000000000000000000000000000, 0x0000000000000000000000000000000000000000, 0, 0
                ),
                0xe9ff17756a1b80f5017564c94c8a60b816e8197da199c6f82370be94ca635ac4,
                0xd6719fc5f0ac83c3ad92093b273416ddec48e4da88eb9fabafd458b9a99689cf
            );
        }
        if (i == 2) {
            return (
                NodeRegistration(
                    115792089237316195423570985008687907853269984665640564039457584007913129639935, 0xFFfFfFffFFfffFFfFFfFFFFFffFFFffffFfFFFfF, 0xFFfFfFffFFfffFFfFFfFFFFFffFFFffffFfFFFfF, 115792089237316195423570985008687907853269984665640564039457584007913129639935, 115792089237316195423570985008687907853269984665640564039457584007913129639935
                ),
                0xfa6980517b4a28cd4781f423c3a38fcc96673dda3c68626a9982abc900682261,
                0x01b17a4ec7babef51e453397558aba046265cb882f0801750e6f2b521391300f
            );
        }
        revert("no such vector");
    }

    function receipt(uint256 i) internal pure returns (Receipt memory, bytes32, bytes32) {
        if (i == 0) {
            return (
                Receipt(
                    17, 34, 51, 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266, 0x70997970C51812dc3A010C7d01b50e0d17dc79C8, 9223372036854775910, 0x7777777777777777777777777777777777777777777777777777777777777777, 136, 9223372036854775961, 9223372036854775978
                ),
                0x875f48dc2eb0867f811a8c68679995bf30bbebc21a0336079aa9b9c590279116,
                0xf34c57cf0de597409a3cb2bd586429bd0a9b37b8edb0aa8eb6062b4702aa5a83
            );
        }
        if (i == 1) {
            return (
                Receipt(
                    0, 0, 0, 0x0000000000000000000000000000000000000000, 0x0000000000000000000000000000000000000000, 0, 0x0000000000000000000000000000000000000000000000000000000000000000, 0, 0, 0
                ),
                0x431e191758ed0cf465d61e9e2654b8acd2eda461ed4665c00c8d0a266e60a08f,
                0x0ef726f29ede8570de4da9636b372e2f0859f017086cc84f84f6945efea8eaf2
            );
        }
        if (i == 2) {
            return (
                Receipt(
                    115792089237316195423570985008687907853269984665640564039457584007913129639935, 115792089237316195423570985008687907853269984665640564039457584007913129639935, 115792089237316195423570985008687907853269984665640564039457584007913129639935, 0xFFfFfFffFFfffFFfFFfFFFFFffFFFffffFfFFFfF, 0xFFfFfFffFFfffFFfFFfFFFFFffFFFffffFfFFFfF, 18446744073709551615, 0xffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff, 4294967295, 18446744073709551615, 18446744073709551615
                ),
                0xbc2900f12a0c47c6cdc1afe6095dc0973fac530217b36c4949270db0ed79750e,
                0xe52b872a6ed56a626f981d121cb6d999ace9c36fa95ad1a63be3f78d13251a5e
            );
        }
        revert("no such vector");
    }

    function countersignature(uint256 i) internal pure returns (Countersignature memory, bytes32, bytes32) {
        if (i == 0) {
            return (
                Countersignature(
                    0x1111111111111111111111111111111111111111111111111111111111111111, 9223372036854775842, 9223372036854775859
                ),
                0xdef8a1dcf04cf4959748a0f0daa644bb16d8ba8bf308e1dd0c7dbccc8f47bbee,
                0x96e4afc4823198abb47e84d9febea750e243bcfcc937f07d24d14715f795b06c
            );
        }
        if (i == 1) {
            return (
                Countersignature(
                    0x0000000000000000000000000000000000000000000000000000000000000000, 0, 0
                ),
                0x0378898a6f6174b17689d101346ff37ab7904e90835840110e75fa88d352153b,
                0x2b4d36d384a7ecbea04e646a1ecf667371247f01a8ad7dc65082a18b1c2475a1
            );
        }
        if (i == 2) {
            return (
                Countersignature(
                    0xffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff, 18446744073709551615, 18446744073709551615
                ),
                0x22054f9e019cb80f4dd8553c5523dec8bb8e02510a5ad53a96eb7904c7ea8430,
                0xe7652b12c952acdd320b28667f56e13982fdb5263e1cd397d980043e1dfd6066
            );
        }
        revert("no such vector");
    }

    function verdict(uint256 i) internal pure returns (Verdict memory, bytes32, bytes32) {
        if (i == 0) {
            return (
                Verdict(
                    17, 0x2222222222222222222222222222222222222222222222222222222222222222, 0x3333333333333333333333333333333333333333333333333333333333333333, 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266, 85, 102, 119, 9223372036854775944, 0x9999999999999999999999999999999999999999999999999999999999999999, 9223372036854775978
                ),
                0xd04007d951d4d7195bc9a726f761c1760484f49bf4e52ad3648073d043ee6519,
                0xdd6e89875d7c0017cf19262ca2ae614edfcd9860712a34b6d1da7eba969a4ec3
            );
        }
        if (i == 1) {
            return (
                Verdict(
                    0, 0x0000000000000000000000000000000000000000000000000000000000000000, 0x0000000000000000000000000000000000000000000000000000000000000000, 0x0000000000000000000000000000000000000000, 0, 0, 0, 0, 0x0000000000000000000000000000000000000000000000000000000000000000, 0
                ),
                0xdc77904566ba43ade173ba88dc2e1d9a0eefde255676ed73e731054496357fd2,
                0x965886b9ad3e141ec2e12f509d0ca16ece1ba744525fa34b988df8d52feebc04
            );
        }
        if (i == 2) {
            return (
                Verdict(
                    115792089237316195423570985008687907853269984665640564039457584007913129639935, 0xffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff, 0xffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff, 0xFFfFfFffFFfffFFfFFfFFFFFffFFFffffFfFFFfF, 255, 255, 255, 18446744073709551615, 0xffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff, 18446744073709551615
                ),
                0x482b1c5bfa04dc46550b336547deef9a8401f2ba58bc28531f750c00354de6aa,
                0x1b285288d8de7e33b612d8825e1f89c36607a9bff58c52e0fefd4ae436504e2c
            );
        }
        revert("no such vector");
    }

    function workLeaf(uint256 i) internal pure returns (WorkLeaf memory, bytes32) {
        if (i == 0) {
            return (
                WorkLeaf(
                    0x1111111111111111111111111111111111111111111111111111111111111111, 0x2222222222222222222222222222222222222222222222222222222222222222, 0x70997970C51812dc3A010C7d01b50e0d17dc79C8, 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266, 85, 9223372036854775910, 9223372036854775927, 136, 153, 9223372036854775978, 0xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
                ),
                0x774079d0d720ac8bb1d17fb996cf99141e5ef1733095894393ab659106447635
            );
        }
        if (i == 1) {
            return (
                WorkLeaf(
                    0x0000000000000000000000000000000000000000000000000000000000000000, 0x0000000000000000000000000000000000000000000000000000000000000000, 0x0000000000000000000000000000000000000000, 0x0000000000000000000000000000000000000000, 0, 0, 0, 0, 0, 0, 0x0000000000000000000000000000000000000000000000000000000000000000
                ),
                0x182d1ba448de07c8da76ac2178262b0563fbf928b4ac37702b74926aa1f43a72
            );
        }
        if (i == 2) {
            return (
                WorkLeaf(
                    0xffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff, 0xffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff, 0xFFfFfFffFFfffFFfFFfFFFFFffFFFffffFfFFFfF, 0xFFfFfFffFFfffFFfFFfFFFFFffFFFffffFfFFFfF, 115792089237316195423570985008687907853269984665640564039457584007913129639935, 18446744073709551615, 18446744073709551615, 255, 255, 18446744073709551615, 0xffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff
                ),
                0xedc25e7c7ed973890cb8eac6464f968465f7937dfc9740457901209ac1ca4498
            );
        }
        revert("no such vector");
    }

    function epochHeader(uint256 i) internal pure returns (EpochHeader memory, bytes32, bytes32) {
        if (i == 0) {
            return (
                EpochHeader(
                    17, 9223372036854775842, 0x3333333333333333333333333333333333333333333333333333333333333333, 0x4444444444444444444444444444444444444444444444444444444444444444, 9223372036854775893, 9223372036854775910, 119, 0x8888888888888888888888888888888888888888888888888888888888888888, 0x9999999999999999999999999999999999999999999999999999999999999999
                ),
                0xfb32a39a501916a62f7d087a3a3eb2c2b566c1c8215bd8ef1830eea55b53dba3,
                0x3d2a9f5e1fa1d97b836036d5711e6872bed6f67e1404eb201cdb86eee1a2d0db
            );
        }
        if (i == 1) {
            return (
                EpochHeader(
                    0, 0, 0x0000000000000000000000000000000000000000000000000000000000000000, 0x0000000000000000000000000000000000000000000000000000000000000000, 0, 0, 0, 0x0000000000000000000000000000000000000000000000000000000000000000, 0x0000000000000000000000000000000000000000000000000000000000000000
                ),
                0x812fc895e519d87b2899a5f8b2af6431b08a2ca0b0af055ccbbf181c316d2f1a,
                0x5547ba8f1482e3dbf5b67dd097b70b62171a2978866717b484ba59ebef2d02a0
            );
        }
        if (i == 2) {
            return (
                EpochHeader(
                    115792089237316195423570985008687907853269984665640564039457584007913129639935, 18446744073709551615, 0xffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff, 0xffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff, 18446744073709551615, 18446744073709551615, 4294967295, 0xffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff, 0xffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff
                ),
                0x965f8a8c09d0b8d17fd1a9349a7f3a00776f9d56604a33dc8fbac2e73e3f46af,
                0x0c532b1b34175cd810875318a0e9855fb87fa0891e291ca89ba0ba12467e2d19
            );
        }
        revert("no such vector");
    }

    function records(uint256 i) internal pure returns (string memory, bytes32) {
        if (i == 0) return ('{"files":[],"parent":"0x0000000000000000000000000000000000000000000000000000000000000000","pool":3,"step":0,"tensors":[{"digest":"0x274accf06252c10675c9af9e62d599952c1cd10d06e0555e846b44bd87a252d2","dtype":"U8","name":"embed.weight","shape":[5]}],"version":2}', 0x5a62836633f4b467445c2d09cbaa399df289a5ee4e0b15d9edf503c0e015a71b);
        if (i == 1) return ('{"files":[{"digest":"0x6e46dd10defc9b56c29a6ec56b508c21f54c08192194e4df25bf36f0c9c3c279","name":"config.json","size":2}],"parent":"0x5a62836633f4b467445c2d09cbaa399df289a5ee4e0b15d9edf503c0e015a71b","pool":3,"step":1,"tensors":[{"digest":"0x274accf06252c10675c9af9e62d599952c1cd10d06e0555e846b44bd87a252d2","dtype":"U8","name":"embed.weight","shape":[5]},{"digest":"0xeb3306de548443432a40b34becfa29129198252ce2628fd0209d8d35b7734114","dtype":"U8","name":"norm.weight","shape":[7]}],"version":2}', 0xaaa4ce5eefd88efba8ba8edc31077627b4825daeebad69c24f405c84ebf90fe4);
        revert("no such vector");
    }

    function params(uint256 i) internal pure returns (string memory, bytes32) {
        if (i == 0) return ('{"accepted_per_strike":6,"cooldown_seconds":5.0,"environment":{"fingerprint":null,"kind":"reasoning_gym","options":{"name":"spell_backward"},"versions":{}},"epoch_leaves":4096,"epoch_seconds":20.0,"grading":{"cpu_seconds":10.0,"memory_bytes":536870912,"processes":16},"group_size":8,"groups_per_step":16,"groups_per_task":2,"judgement_seconds":30.0,"lease_seconds":30.0,"max_sampling":4.0,"max_staleness":1,"max_steps":null,"max_submission_bytes":4194304,"model":{"chat_template_hash":null,"chat_template_kwargs":{},"compute_dtype":"float32","end_tokens":[],"max_completion_tokens":8,"max_prompt_tokens":512,"prompt_format":"raw","temperature":1.0},"name":"vectors","online_filter":false,"quorum":2,"receipt_seconds":86400.0,"strikes_to_suspend":8,"turn_seconds":5.0,"verification":{"audit_rate":0.1,"audit_rows":3,"confirm_rate":0.1,"contracts":[],"draw_seconds":24,"hardware":"any","mode":"calibrated","newcomer_submissions":8,"proof_top_k":128,"proof_window":32,"thresholds":{"exponent":null,"exponent_max":3,"false_reject_rate":1e-06,"logprob":{"items":0,"largest":1e-05,"mean":2e-05,"variance":0.0},"logprob_max":0.001,"lost":null,"mantissa":null,"mantissa_mean_max":0.0125,"margin":null,"margin_max":0.0001},"validator_engine":"any","worker_engine":"any"},"version":5}', 0xdbe852d8a7c19cb2a99face1e5709c613d19617bc7c69f825f30345c7f77fa35);
        revert("no such vector");
    }

    function price(uint256 i) internal pure returns (uint64, uint96, uint256) {
        if (i == 0) return (0, 1000000000000000000, 0);
        if (i == 1) return (1, 1000000000000000000, 1000000000000);
        if (i == 2) return (999999, 1, 0);
        if (i == 3) return (1000000, 1, 1);
        if (i == 4) return (1499, 2000, 2);
        if (i == 5) return (1500, 2000, 3);
        if (i == 6) return (18446744073709551615, 79228162514264337593543950335, 1461501637330902918124456670183571937988679);
        revert("no such vector");
    }

    function reward(uint256 i)
        internal
        pure
        returns (address who, uint256 earned, bytes32 leaf, bytes32[] memory proof)
    {
        if (i == 0) {
            proof = new bytes32[](3);
            proof[0] = 0x030669aa685ef6ec818e76742ff360a18197fb484f4d1a271256566232d6ca75;
            proof[1] = 0xed7a267d4475cd006fe9e3bd0c801dbda000ee9622496e05368d82f7142ebe36;
            proof[2] = 0x17a261fc52b24c240b6fd769b2fe4c8ebeecdc487e71dbf7a10b84cb121622de;
            return (0x70997970C51812dc3A010C7d01b50e0d17dc79C8, 0, 0x094c4d42c5973f4929999a9ae50697e7f9dae657357aa116016b84ff0c1287de, proof);
        }
        if (i == 1) {
            proof = new bytes32[](2);
            proof[0] = 0xa40ef276c7b23cb48e8c2ad131596dcffe070209f75de9f652568a39d1ee664a;
            proof[1] = 0x1c2d69dcf39f994322f0a1fa6c877f5e73bd827e956c2ecb9180b541f05b2e23;
            return (0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266, 7, 0x67380b0a778f5edb4fe99e36bd9c4ec23bcf8d9bb4367689fa102e0859f9b4f3, proof);
        }
        if (i == 2) {
            proof = new bytes32[](3);
            proof[0] = 0x094c4d42c5973f4929999a9ae50697e7f9dae657357aa116016b84ff0c1287de;
            proof[1] = 0xed7a267d4475cd006fe9e3bd0c801dbda000ee9622496e05368d82f7142ebe36;
            proof[2] = 0x17a261fc52b24c240b6fd769b2fe4c8ebeecdc487e71dbf7a10b84cb121622de;
            return (0xFFfFfFffFFfffFFfFFfFFFFFffFFFffffFfFFFfF, 1000000000000000000000000000000, 0x030669aa685ef6ec818e76742ff360a18197fb484f4d1a271256566232d6ca75, proof);
        }
        if (i == 3) {
            proof = new bytes32[](2);
            proof[0] = 0x67380b0a778f5edb4fe99e36bd9c4ec23bcf8d9bb4367689fa102e0859f9b4f3;
            proof[1] = 0x1c2d69dcf39f994322f0a1fa6c877f5e73bd827e956c2ecb9180b541f05b2e23;
            return (0x0000000000000000000000000000000000000000, 1, 0xa40ef276c7b23cb48e8c2ad131596dcffe070209f75de9f652568a39d1ee664a, proof);
        }
        if (i == 4) {
            proof = new bytes32[](2);
            proof[0] = 0x770c0fb7d364b78242538d4db82f05aeb7cdf3c5af4edb0239cea18d3807740b;
            proof[1] = 0x17a261fc52b24c240b6fd769b2fe4c8ebeecdc487e71dbf7a10b84cb121622de;
            return (0x5FbDB2315678afecb367f032d93F642f64180aa3, 115792089237316195423570985008687907853269984665640564039457584007913129639935, 0xed7a267d4475cd006fe9e3bd0c801dbda000ee9622496e05368d82f7142ebe36, proof);
        }
        revert("no such vector");
    }
}
