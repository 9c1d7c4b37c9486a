"""What is at stake in each kind of message: what its receiver can work out of the sender's or another party's data.

The form of a message says how it travels, not what it costs. Labels under a code are as good as labels, and a message
in clear may tell nothing. So pages and commands show this table beside the form. A message is "rows" where the attacks
of ``woodlot leak-test``, or what the documents say of it, get at labels, values or ids of single rows from it, alone or
with the other messages of its job.
"""

from __future__ import annotations

from typing import Literal, get_args

Stake = Literal["rows", "numbers", "nothing"]

STAKES: tuple[Stake, ...] = get_args(Stake)

IN_WORDS: dict[Stake, str] = {
    "rows": "labels, values or ids of single rows can be worked out from it, alone or with others of the same job",
    "numbers": "numbers and names that are not of single rows: counts, scores, sums, columns, settings",
    "nothing": "nothing of anybody's data",
}

_ROWS = """
    CommonRows FindCommon IdTokens TakeIntersection
    FillLeaves GrowOn GrownTrees LocalTrees ThresholdsProposed
    OutOfBagAnswers Predictions RateAnswers TakeAnswers
    Advance Descend LinearStarted PartialScores Residuals Scores
    CountValues DrawByClass DrawByWeight DrawRows
    ExpandLeaves FinishConstruction LabelsSent SplitVectors
    AnswersOpened OpenDifferences RowsTested TestRows
    CompareAtHelper CompareAtService HelperCompared ServiceCompared
    AnswerOwnRows PredictRows Score ScoreLeftOut SealedLeaves PlainVector
    AskNodes Decisions EncodedLabels FinishTrees GrowLevel LeafTotals Partition Ranks ReachableLeaves RegrowLevel Sides
    SplitTable StartForest
    AllSides RowValues
    CodeShares OpenBins ServerSums
    LeadOn LeaderAnswered ScoreFrame ScoreOn SealedRequest SealedScore TakeFrames
"""

_NUMBERS = """
    AnswerRequest DrawSecret Introduced RowsTaken SealedAnswer SealedCommon SealedRequests TakeSecret
    Refusal
    ColumnsDescribed CountLeaves CountRows CountSplits ProposeThresholds QuantilesTold
    RowsDescribed UseSchema
    EndForgetting ForgettingOpened RowsFound
    AnswersRated CatalogTold DriftTold ExplainedColumns OwnRowsAnswered RateOwnRows SealedExplanation
    AnswersTaken FederationFacts JobList JobOpened JobStatus ModelList ModelPart OpenJob ReceiptText SubmitJob UseModel
    LinearFit LinearSummary
    DescendHidden MaskedScores OpenDescent StartProducts
    CountCells ParticipantSummary
    SumGradients TakeTrees
    DealComparisons ForestInUse OpenAnswers RegisterSplits TakeRequest
    AdmitRequest RegisterAtHelper RegisterAtService RequestAdmitted SplitsShared TakeValues
    RowsPredicted AskScore ScoreBatch MaskedVector SharesTold
    ApplySplits HolderOffers Offers OutOfBagScores PlantTrees ReplantTrees TableSummary
    AskPairs AskRows DealShuffle HiddenSummary KeepSplits MaskedRecords PlantHidden ServerTotals StartDealer StartServer
    AskLeader LeadJob LeadScores LeaderAnswer LeaderQuestion LedJobOpened LedScores LedStep SealedReply
"""

_NOTHING = """
    OpenAlignment SealedSecret SecretTaken SendRequests SendTokens
    ApprovalPending Away Unanswered
    AskAllSides AskCatalog AskDrift AskExplained AskExplanation AskRowValues CountClasses CountScores CountWeights
    CountOutside DescribeColumns TellQuantiles
    CountTotals TreesTaken
    DescribeRows GrowAlone SchemaInUse
    AlignmentKept AskAudit AskFederation AskJob AskModel AskPredictions AskReceipt AuditReport CancelJob Declined
    DropModel FindModel ForgetJob JobForgotten KeepAlignment KeepModel LeaveNoted LeaveNotice ListJobs ListModels
    OpenForgetting ForgettingSigned
    EraseModel ModelDropped ModelErased ModelKept ModelReady ResumeJob
    AskScores FinishLinear LinearFinished OpenLinear StartLinear
    AskColumns DealProducts DealtKey DealtProducts DescendOwn DescentReady HiddenResiduals HiddenStart MaskSlopes
    MaskedColumns MaskedTaken OpenDealt ProductsReady SlopeShares StartHidden TakeMasked
    ConstructionDone OpenConstruction SendLabels
    AskKeys CommitEpoch ComparisonsDealt ComparisonsFinished DifferencesBlinded EncryptSplits EpochCommitted
    FinishComparisons GroupMade KeyDrawn KeysKnown
    KeysOfModel KnowKeys MakeGroup MeetMembers MemberIntroduced MembersMet OpenEpoch RevokeAtHelper RevokeAtService
    RequestTaken RevokedAtHelper RevokedAtService ShareTaken SplitsEncrypted SplitsRegistered TakeGroup TakeShare
    UseForest
    PrepareShares RegisteredAtHelper RegisteredAtService ShareSplits SharesOfModel SharesPrepared
    ValuesTaken
    CloseScoring OpenScoring ScoringReady AskSealed
    OpenSums StartSums SumsIntroduced SumsStarted
    PrepareSums SumsPrepared TakeShares SharesTaken NameSurvivors SurvivorsEchoed Unmask
    AskDecisions OpenTraining Ready RevealSplits ShareLabels TreesDone
    ColumnShares DealDraws DealerKey DealerReady DealtDraws DealtShuffle HiddenReady OpenHidden PassRecords ShareColumns
    DealSecond DealtSecond SplitsKept
    AskFrames FramesTaken LeaderMet MeetLeader
"""

_LISTS: dict[Stake, str] = {"rows": _ROWS, "numbers": _NUMBERS, "nothing": _NOTHING}

KINDS: dict[str, Stake] = {kind: stake for stake, kinds in _LISTS.items() for kind in kinds.split()}
"""The stake of each kind of message."""


def stake_of(kind: str) -> Stake:
    """What is at stake in a kind of message; the worst where nobody has judged it."""
    return KINDS.get(kind, "rows")


# --- which asset is told ---

Asset = Literal["labels", "values", "thresholds", "sides", "answers", "ids", "names", "counts", "frames"]

ASSETS: dict[Asset, str] = {
    "labels": "labels, or which rows have the same one",
    "values": "values of columns, or their order",
    "thresholds": "thresholds and sets of categories of splits",
    "sides": "which row goes which way in a tree",
    "answers": "answers of the model for rows, or of its leaves",
    "ids": "which rows of different parties belong together, or ids",
    "names": "names of columns, categories or classes",
    "counts": "counts, scores, sums, sizes and settings",
    "frames": "sealed frames: what is in them, only leader and party read",
}
"""What a receiver can work out, in words."""

_TOLD: dict[Asset, str] = {
    "labels": """
        LabelsSent EncodedLabels StartForest LeafTotals LinearStarted Descend Residuals PlainVector LocalTrees
        GrowLevel RegrowLevel FinishTrees ExpandLeaves FinishConstruction
    """,
    "values": """
        Partition Ranks SplitVectors RowValues AllSides PartialScores Scores Advance LocalTrees GrowOn GrownTrees
        FillLeaves ThresholdsProposed CountValues DrawRows DrawByClass DrawByWeight CompareAtHelper
        CompareAtService AnswersOpened
        HelperCompared ServiceCompared PlainVector CodeShares OpenBins ServerSums SealedExplanation
        GrowLevel RegrowLevel FinishTrees ExpandLeaves FinishConstruction
    """,
    "thresholds": """
        SplitTable PredictRows AnswerOwnRows LocalTrees GrowOn GrownTrees FillLeaves ScoreLeftOut DrawRows DrawByClass
        DrawByWeight
        ThresholdsProposed ProposeThresholds CountSplits CountLeaves CountCells ModelPart AnswersOpened HelperCompared
        ServiceCompared
    """,
    "sides": """
        Partition GrowLevel RegrowLevel FinishTrees ExpandLeaves FinishConstruction Decisions ReachableLeaves Ranks
        AskNodes Sides AllSides SealedLeaves SplitVectors TestRows RowsTested OpenDifferences CompareAtHelper
        CompareAtService AnswersOpened HelperCompared ServiceCompared
    """,
    "answers": """
        TakeAnswers Predictions RateAnswers LeafTotals PredictRows AnswerOwnRows SealedScore Score OutOfBagAnswers
        ScoreLeftOut LocalTrees Decisions ReachableLeaves Ranks Sides SealedLeaves ModelPart SealedExplanation
        LeaderAnswered
    """,
    "ids": """
        IdTokens CommonRows FindCommon TakeIntersection LeadScores ScoreBatch Scores Decisions ReachableLeaves Ranks
        AllSides Score SealedScore
    """,
    "names": """
        RowsDescribed UseSchema ColumnsDescribed ExplainedColumns EncodedLabels LabelsSent LinearStarted SplitTable
        PredictRows AnswerOwnRows LocalTrees GrowOn GrownTrees FillLeaves ScoreLeftOut OpenJob SubmitJob ModelPart
        SealedExplanation
    """,
    "counts": """
        LeafTotals LocalTrees ServerSums CodeShares OpenBins ScoreLeftOut DrawByClass DrawByWeight CommonRows FindCommon
    """,
    "frames": "LeadOn TakeFrames SealedRequest ScoreFrame ScoreOn LeaderAnswered",
}

_BY_KIND: dict[str, frozenset[Asset]] = {
    kind: frozenset(asset for asset, kinds in _TOLD.items() if kind in kinds.split())
    | ({"counts"} if stake == "numbers" else set())
    for kind, stake in KINDS.items()
    if stake != "nothing"
}


def assets_of(kind: str) -> frozenset[Asset]:
    """Which assets a kind of message tells its receiver of; all where nobody has judged it."""
    if stake_of(kind) == "nothing":
        return frozenset()
    return _BY_KIND.get(kind) or frozenset(asset for asset in ASSETS if asset != "frames")
