"""The table of fields that are not digested as they are, and why.

By struct and field: a message, a struct within a message, or an object of a JSON file, such as
``part.json.extra.cost``.
"""

from __future__ import annotations

from collections.abc import Iterator

from canonical import Variable

_KEY = "a public key, drawn for the job"
_SEALED = "sealed or tagged with keys of the job"
_SIGNED = "of certificates and keys that every run makes"
_MASKED = "under masks that follow from the keys of the job"
_CIPHER = "a key of the job, or ciphertexts under it"
_TRANSCRIPT = "hash of the public keys of the job"
_BLAS = "sums by BLAS and exponentials by libm: their last bits are a machine's own"
_WEIGHTS = f"of a linear model a hash of its weights ({_BLAS}); forests are digested as files"
_LENGTH = "secret numbers, or what has them: as long as the number is, so one in 256 is a byte shorter"
_BOTH = "ciphertexts, or masks, of numbers whose last bits are a machine's own"
_WORDS = "words for people"
_SIZES = "sizes of messages, to which their names and sealed parts add"
_CLOCK = "times"

_TABLE: dict[str, dict[str, tuple[str, str]]] = {
    # labels of a vertical forest
    "EncodedLabels": {"labels": ("secret", "the numbers of the classes are permuted by a secret of the label holder")},
    "StartForest": {"labels": ("secret", "as in EncodedLabels")},
    "OutOfBagScores": {
        "scores": ("rounded", "R2 is made of sums whose order is numpy's"),
        "residuals": ("rounded", "quantiles are interpolated by numpy"),
    },
    # linear models
    "LinearStarted": {"penalty curvature residuals weights": ("rounded", _BLAS)},
    "Descend": {"step residuals penalty curvature weights": ("rounded", _BLAS)},
    "PartialScores": {"scores products steepest": ("rounded", _BLAS)},
    "Advance": {"scores products": ("rounded", _BLAS)},
    "Residuals": {"step residuals": ("rounded", _BLAS)},
    "LinearFit": {"intercept unit": ("rounded", _BLAS)},
    "Scores": {"scores": ("rounded", _BLAS)},
    "HiddenStart": {"penalty curvature weights": ("rounded", _BLAS), "nonce": ("shape", _BOTH)},
    "OpenDescent": {"introductions": ("sealed", _SIGNED), "penalty curvature weights": ("rounded", _BLAS)},
    "StartProducts": {"introductions": ("sealed", _SIGNED)},
    "DealtKey": {"introduction": ("sealed", _SIGNED)},
    "ProductsReady": {"secret": ("secret", _CIPHER)},
    "DescentReady": {"nonce": ("shape", _BOTH)},
    "MaskedColumns": {"columns": ("shape", _BOTH)},
    "TakeMasked": {"secret": ("secret", _CIPHER), "columns": ("shape", _BOTH)},
    "DealProducts": {"nonce of_columns": ("shape", _BOTH)},
    "DealtProducts": {"products": ("shape", _BOTH)},
    "MaskSlopes": {"products": ("shape", _BOTH)},
    "SlopeShares": {"residuals shares": ("shape", _BOTH)},
    "DescendHidden": {"step": ("rounded", _BLAS), "nonce residuals share asked": ("shape", _BOTH)},
    "MaskedScores": {"scores products": ("shape", _BOTH)},
    "DescendOwn": {"step": ("rounded", _BLAS)},
    "HiddenResiduals": {"step": ("rounded", _BLAS), "nonce": ("shape", _BOTH)},
    # keys of a revocable forest
    "KeyIntroduction": {"share": ("secret", _KEY), "certificate signature": ("drawn", _SIGNED)},
    "MembersMet": {"transcript": ("secret", _TRANSCRIPT)},
    "GroupMade": {"share sealed": ("sealed", _LENGTH), "tags": ("secret", _SEALED)},
    "GroupProof": {"job": ("drawn", "drawn"), "signature": ("drawn", _SIGNED)},
    "TakeGroup": {"tag": ("secret", _SEALED)},
    "KeyDrawn": {"public": ("sealed", _LENGTH), "tag": ("secret", _SEALED)},
    "TakeShare": {"tag": ("secret", _SEALED), "sealed": ("sealed", _LENGTH)},
    "KnowKeys": {"keys": ("sealed", _LENGTH), "tags": ("secret", _SEALED)},
    "EncryptSplits": {"forest": ("drawn", "has the name of a job"), "kept kept_feature": ("secret", _CIPHER)},
    "SplitsEncrypted": {"splits tags statement": ("secret", _CIPHER), "proof": ("sealed", _LENGTH)},
    "RegisterSplits": {
        "forest": ("drawn", "has the name of a job"),
        "hashes owner feature stays splits fresh_owner fresh_feature statements": ("secret", _CIPHER),
        "proofs": ("sealed", _LENGTH),
    },
    "KeysOfModel": {"splits": ("secret", _CIPHER)},
    "SharesOfModel": {"splits": ("secret", _CIPHER)},
    "PublicGroup": {"modulus": ("secret", _KEY), "generator": ("sealed", _LENGTH)},
    "Ticket": {
        "request": ("secret", "drawn by the requester"),
        "digest splits": ("secret", _CIPHER),
        "certificate signature": ("drawn", _SIGNED),
    },
    "TakeRequest": {"values hashes owner feature": ("secret", _CIPHER), "proof": ("sealed", _LENGTH)},
    "ComparisonsDealt": {"words tops masks proofs": ("secret", _MASKED)},
    "OpenDifferences": {"splits": ("secret", _CIPHER), "proof": ("sealed", _LENGTH), "masks": ("secret", _MASKED)},
    "DifferencesBlinded": {"blinded": ("secret", _MASKED)},
    "FinishComparisons": {"halves": ("secret", _MASKED)},
    "ComparisonsFinished": {"words": ("secret", _MASKED), "answers": ("sealed", _LENGTH)},
    "OpenAnswers": {"answer": ("sealed", _LENGTH)},
    "AnswersOpened": {"bits": ("secret", "shares of the comparisons' results")},
    "TestRows": {"splits tags": ("secret", _CIPHER)},
    "ShareSplits": {"forest": ("drawn", "has the name of a job")},
    "SplitsShared": {"helper service place commit": ("secret", _SEALED)},
    "RegisterAtHelper": {"forest": ("drawn", "has the name of a job"), "boxes": ("secret", _SEALED)},
    "RegisterAtService": {"forest": ("drawn", "has the name of a job"), "boxes": ("secret", _SEALED)},
    "RegisteredAtHelper": {
        "lines": ("secret", "hashes of the parties' words on their splits, and of the forest's name")
    },
    "RegisteredAtService": {"lines": ("secret", "as at the helper")},
    "RequestAdmitted": {"leave": ("secret", _SEALED)},
    "TakeValues": {"values leaves": ("secret", _SEALED)},
    "CompareAtHelper": {"owner place row column": ("secret", "in an order that is drawn by the parties")},
    "CompareAtService": {"owner place row column": ("secret", "in an order that is drawn by the parties")},
    "HelperCompared": {"words tops": ("secret", _MASKED)},
    "ServiceCompared": {"words tops": ("secret", _MASKED)},
    # secure sums and sealed predictions
    "SumIntroduction": {
        "share": ("secret", _KEY),
        "picks": ("secret", "drawn by a secret of the client"),
        "certificate signature": ("drawn", _SIGNED),
    },
    "SumsPrepared": {"envelopes shares": ("secret", _SEALED)},
    "TakeShares": {"shares": ("secret", _SEALED)},
    "SurvivorsEchoed": {"echoes": ("secret", _SEALED)},
    "Unmask": {"echoes": ("secret", _SEALED)},
    "SharesTold": {"asked": ("secret", _TRANSCRIPT), "shares": ("secret", "shares of secrets of the job")},
    "SumsStarted": {"transcript": ("secret", _TRANSCRIPT)},
    "MaskedVector": {"values": ("secret", _MASKED)},
    "SealedLeaves": {"values": ("secret", _MASKED)},
    # alignment
    "Introduction": {"share": ("secret", _KEY), "certificate signature": ("drawn", _SIGNED)},
    "SealedSecret": {"confirmation sealed": ("secret", _SEALED)},
    "TakeSecret": {"confirmation sealed": ("secret", _SEALED)},
    "IdTokens": {"tokens": ("secret", "ids under the secret of the job")},
    "SealedRequests": {"sealed": ("secret", _SEALED)},
    "AnswerRequest": {"sealed": ("secret", _SEALED)},
    "SealedAnswer": {"sealed": ("secret", _SEALED)},
    "FindCommon": {"sealed": ("secret", _SEALED)},
    "SealedCommon": {"sealed": ("secret", _SEALED)},
    "TakeIntersection": {"sealed": ("secret", _SEALED)},
    # jobs of the services
    "OpenJob": {
        "order": ("json", "signed as JSON"),
        "signature passed certificate coordinator": ("drawn", _SIGNED),
    },
    "LeaveNotice": {"order": ("json", "signed as JSON"), "signature certificate": ("drawn", _SIGNED)},
    "order": {
        "job model alignment keys": ("drawn", "names of jobs"),
        "created": ("drawn", _CLOCK),
        "federation": ("drawn", _SIGNED),
        "sealed values proof splits": ("drawn", _SEALED),
        "kind": ("name", "the name of an order"),
    },
    # jobs that a party leads: who is asked when, and how long frames are
    "LedJobOpened": {"fingerprint": ("secret", "keyed by a secret of the party")},
    "LedKey": {"share": ("secret", _KEY), "certificate signature": ("drawn", _SIGNED)},
    "LedStep": {"frames": ("secret", _SEALED)},
    "LeadOn": {"frames": ("secret", _SEALED)},
    "SealedRequest": {"frame": ("secret", _SEALED)},
    "SealedReply": {"frame": ("secret", _SEALED)},
    "LeadScores": {"sealed": ("secret", _SEALED)},
    "ScoreFrame": {"frame": ("secret", _SEALED)},
    "ScoreOn": {"frames": ("secret", _SEALED)},
    "LedScores": {"answers": ("secret", _SEALED)},
    "ForgetJob": {"job": ("drawn", "the name of a job")},
    "JobOpened": {"fingerprint": ("secret", "keyed by a secret of the party")},
    "ModelKept": {"digest": ("secret", "keyed by a secret of the party")},
    "DropModel": {"model": ("drawn", "the name of a job")},
    "KeepModel": {"forest": ("shape", _WEIGHTS)},
    "UseModel": {"model": ("drawn", "the name of a job"), "forest": ("shape", _WEIGHTS)},
    "OpenScoring": {"model": ("drawn", "the name of a job")},
    "ScoreBatch": {"sealed": ("drawn", _SEALED)},
    "PredictRows": {"model": ("drawn", "the name of a job"), "files": ("files", "files hold times")},
    "AnswersTaken": {"score": ("rounded", "as OutOfBagScores")},
    "RowsPredicted": {"score": ("rounded", "as OutOfBagScores")},
    # model files
    "part.json": {"arrays_sha256 sha256": ("drawn", "over whole files, with their times and names")},
    "part.json.extra": {
        "oob_score oob_curve residuals": ("rounded", "as OutOfBagScores"),
        "receipts": ("drawn", "signed texts; what they state is digested by itself"),
    },
    "part.json.extra.cost": {
        "seconds total_seconds network_seconds": ("drawn", _CLOCK),
        "bytes_by_party bytes_received bytes_sent wire_bytes": ("drawn", _SIZES),
    },
    "part.json.extra.disclosure": {
        "reveals": ("drawn", _WORDS),
        "bytes": ("drawn", _SIZES),
        "kind": ("name", "the name of a message"),
    },
    "part.json.extra.privacy": {
        "mechanism not_protected": ("drawn", _WORDS),
        "epsilon": ("rounded", "composed by a library"),
    },
    "facts.json": {
        "model": ("drawn", "the name of a job"),
        "created": ("drawn", _CLOCK),
        "disclosure cost": ("drawn", _SIZES),
        "privacy": ("drawn", _WORDS),
        "oob_score oob_curve": ("rounded", "as OutOfBagScores"),
    },
    # receipts
    "Statement": {
        "created": ("drawn", _CLOCK),
        "model": ("drawn", "between organisations the name of a job"),
        "before after": ("secret", "SHA-256 of ciphertexts among others; the forests' are in the model files"),
        "revoked_key": ("secret", _KEY),
    },
    "CostOf": {"seconds": ("drawn", _CLOCK), "bytes": ("drawn", _SIZES)},
}


def _by_field() -> Iterator[tuple[tuple[str, str], Variable]]:
    for struct, rows in _TABLE.items():
        for fields, (kind, why) in rows.items():
            for field in fields.split():
                yield (struct, field), Variable(kind, why)  # type: ignore[arg-type]


VARIABLE: dict[tuple[str, str], Variable] = dict(_by_field())
